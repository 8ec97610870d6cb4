// Imports one module of handlers, TypeScript or JavaScript, and picks the job definitions it exports.
// Used by the daemon at boot and by the threads of isolated handlers.
import { pathToFileURL } from 'node:url';
import { isDefinition, type JobDefinition } from './define-job.ts';

export async function loadDefinitions(file: string): Promise<JobDefinition[]> {
  const exported = await importModule(file);
  const found = new Map<string, JobDefinition>();
  for (const [name, value] of Object.entries(exported)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (isDefinition(one)) {
        // The same definition may be exported twice, as itself and as the default.
        const other = found.get(one.type);
        if (other !== undefined && other !== one) throw new Error(`exports two jobs of type "${one.type}"`);
        found.set(one.type, one);
      } else if (looksLikeJob(one)) {
        throw new Error(`its export "${name}" looks like a job but was not made with defineJob`);
      }
    }
  }
  return [...found.values()].map((definition) => ({ ...definition, file }));
}

async function importModule(file: string): Promise<Record<string, unknown>> {
  const url = pathToFileURL(file).href;
  let exported: Record<string, unknown>;
  if (/\.[cm]?tsx?$/.test(file)) {
    // Loaded only where there is TypeScript to load.
    const { tsImport } = await import('tsx/esm/api');
    exported = (await tsImport(url, import.meta.url)) as Record<string, unknown>;
  } else {
    exported = (await import(url)) as Record<string, unknown>;
  }
  // A CommonJS module, or one compiled to it, has its exports below `default`.
  const inner = exported.default;
  const isNamespace = typeof inner === 'object' && inner !== null && !Array.isArray(inner) && !isDefinition(inner);
  if (!isNamespace || looksLikeJob(inner)) return exported;
  return { ...exported, default: undefined, ...(inner as Record<string, unknown>) };
}

function looksLikeJob(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  return 'type' in value && typeof value.type === 'string' && ('run' in value || 'phases' in value);
}
