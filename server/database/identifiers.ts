// The one place where identifiers are quoted. Everything else interpolates a `Schema` only.

declare const quoted: unique symbol;
/** A schema name, validated and quoted, safe to interpolate: `${schema}.jobs`. */
export type Schema = string & { readonly [quoted]: true };

export const controlSchema = quoteSchema('leasehold');

// Postgres cuts identifiers at 63 bytes; a cut name could meet another tenant's.
const slugPattern = /^[a-z][a-z0-9_]{0,47}$/;
export const slugRule = 'a lower-case letter, then up to 47 lower-case letters, digits or underscores';

export function isSlug(text: string): boolean {
  return slugPattern.test(text);
}

export function tenantSchemaName(slug: string): string {
  if (!isSlug(slug)) throw new Error(`not a tenant slug: ${JSON.stringify(slug)}`);
  return `tenant_${slug}`;
}

export function quoteSchema(name: string): Schema {
  if (!/^[a-z][a-z0-9_]{0,62}$/.test(name)) throw new Error(`not a schema name: ${JSON.stringify(name)}`);
  return `"${name}"` as Schema;
}
