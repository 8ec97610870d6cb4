// Refuses an old Node with one sentence, before a module is loaded that such a Node cannot link.

// `engines` of package.json says the same.
const minimum = { major: 20, minor: 19 };

/** Ends the process with exit code 1 if Node is too old. */
export function requireNodeVersion(): void {
  const { node } = process.versions;
  const [major = 0, minor = 0] = node.split('.').map(Number);
  if (major > minimum.major || (major === minimum.major && minor >= minimum.minor)) return;
  process.stderr.write(`leasehold: Node ${minimum.major}.${minimum.minor} or newer is needed; this is Node ${node}\n`);
  process.exit(1);
}
