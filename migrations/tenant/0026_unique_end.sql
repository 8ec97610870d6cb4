-- Citus refuses a sum of times within the CASE of an UPDATE: on a cluster no job with a unique key could be enqueued by SQL.
-- The time is computed before the UPDATE; nothing else of the function changes.
DO $do$
DECLARE
  source text := pg_get_functiondef('"tenant_template".enqueue'::regproc);
  changed text := source;
BEGIN
  changed := regexp_replace(changed, 'held_until = CASE .*? END(?=\s+WHERE u\.type)', 'held_until = unique_end');
  changed := regexp_replace(changed, '(\n +)(UPDATE "?[a-z0-9_]+"?\.unique_keys)',
    E'\\1IF unique_until NOT IN (''started'', ''finished'') THEN'
    || E'\\1  unique_end := called_at + unique_until::bigint * interval ''1 second'';'
    || E'\\1END IF;\\1\\2');
  changed := regexp_replace(changed, '(\n +)(found_hash text;)', E'\\1\\2\\1unique_end timestamptz;');
  IF changed !~ 'unique_end timestamptz.*unique_end :=.*held_until = unique_end' THEN
    RAISE EXCEPTION 'the enqueue function is not the one of the last migration';
  END IF;
  EXECUTE changed;
END
$do$;
