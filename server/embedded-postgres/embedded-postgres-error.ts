// Errors of the embedded Postgres, with messages that are shown without a stack.

export class EmbeddedPostgresError extends Error {
  override name = 'EmbeddedPostgresError';
}

/** A message for the common errors of the file system; other errors unchanged. */
export function explainFileError(error: unknown, path: string): unknown {
  const code = error instanceof Error && 'code' in error ? error.code : undefined;
  switch (code) {
    case 'EACCES':
    case 'EPERM':
      return new EmbeddedPostgresError(`no permission to write to ${path}; change its owner or set DATA_DIR elsewhere`);
    case 'EROFS':
      return new EmbeddedPostgresError(`${path} is on a read-only file system; set DATA_DIR elsewhere`);
    case 'ENOSPC':
    case 'EDQUOT':
      return new EmbeddedPostgresError(`no room is left on the disk of ${path}; free some or set DATA_DIR elsewhere`);
    case 'ENOTDIR':
    case 'EEXIST':
      return new EmbeddedPostgresError(`${path} is not a directory; set DATA_DIR elsewhere`);
    default:
      return error;
  }
}
