-- Enqueues a job in the caller's transaction, from any language: `select tenant_acme.enqueue('invoice.send', '{"id":7}')`.
-- Does what enqueueInCallersTransaction() of server/jobs/enqueue/enqueue.ts does; a test compares both. Runs with the rights
-- of its owner, so that a role needs nothing but USAGE of the schema and EXECUTE of this function.
CREATE FUNCTION "tenant_template".enqueue(
  type text,
  payload jsonb DEFAULT '{}',
  target text DEFAULT NULL,
  run_at timestamptz DEFAULT NULL,
  priority text DEFAULT 'NORMAL',
  idempotency_key text DEFAULT NULL,
  queue text DEFAULT 'default',
  max_attempts integer DEFAULT NULL,
  timeout_seconds double precision DEFAULT NULL,
  expires_in_seconds double precision DEFAULT NULL,
  on_error text DEFAULT NULL,
  author text DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  schema_name text := btrim('"tenant_template"', '"');
  tenant record;
  definition record;
  is_live boolean;
  is_remote boolean;
  rank smallint := array_position(array['URGENT', 'HIGH', 'NORMAL', 'LOW'], priority) - 1;
  stored jsonb := CASE WHEN payload IS NULL OR payload = 'null'::jsonb THEN '{}'::jsonb ELSE payload END;
  hash text;
  wrong text;
  called_at timestamptz := clock_timestamp();
  micros bigint := extract(epoch FROM called_at) * 1000000;
  -- Version 7: milliseconds, then the microseconds as twelve bits, then random bits.
  job_id uuid := (lpad(to_hex(micros / 1000), 12, '0') || '7' || lpad(to_hex((micros % 1000) * 4096 / 1000), 3, '0')
    || substr(replace(gen_random_uuid()::text, '-', ''), 17))::uuid;
  status text;
  waiting integer;
  max_queued integer;
  found_id uuid;
  found_hash text;
BEGIN
  wrong := CASE
    WHEN type IS NULL OR char_length(type) NOT BETWEEN 1 AND 200 THEN 'type: must have 1 to 200 characters'
    WHEN type ~ '[\u0001-\u001f\u007f-\u009f\u2028\u2029]|^\s|\s$' THEN 'type: must contain printable characters only, without a space at its ends'
    WHEN target IS NOT NULL AND char_length(target) NOT BETWEEN 1 AND 200 THEN 'target: must have 1 to 200 characters'
    WHEN target ~ '[\u0001-\u001f\u007f-\u009f\u2028\u2029]|^\s|\s$' THEN 'target: must contain printable characters only, without a space at its ends'
    WHEN target IN ('.', '..') THEN 'target: must not be . or ..'
    WHEN queue IS NULL OR char_length(queue) NOT BETWEEN 1 AND 200 THEN 'queue: must have 1 to 200 characters'
    WHEN queue ~ '[\u0001-\u001f\u007f-\u009f\u2028\u2029]|^\s|\s$' THEN 'queue: must contain printable characters only, without a space at its ends'
    WHEN author IS NOT NULL AND char_length(author) NOT BETWEEN 1 AND 200 THEN 'author: must have 1 to 200 characters'
    WHEN author ~ '[\u0001-\u001f\u007f-\u009f\u2028\u2029]|^\s|\s$' THEN 'author: must contain printable characters only, without a space at its ends'
    WHEN rank IS NULL THEN 'priority: must be URGENT, HIGH, NORMAL or LOW'
    WHEN char_length(idempotency_key) NOT BETWEEN 1 AND 200 THEN 'idempotency_key: must have 1 to 200 characters'
    WHEN max_attempts NOT BETWEEN 1 AND 100 THEN 'max_attempts: must be from 1 to 100'
    WHEN timeout_seconds NOT BETWEEN 0 AND 31536000000 THEN 'timeout_seconds: must be from 0 to 31536000000'
    WHEN expires_in_seconds NOT BETWEEN 0.001 AND 31536000000 THEN 'expires_in_seconds: must be from 0.001 to 31536000000'
    WHEN on_error NOT IN ('block', 'continue') THEN 'on_error: must be block or continue'
    WHEN run_at < '0001-01-01T00:00:00Z' OR run_at >= '10000-01-01T00:00:00Z' THEN 'run_at: must lie between the years 1 and 9999'
    WHEN octet_length(stored::text) > 1048576 THEN 'payload: has more than 1048576 bytes as JSON'
    WHEN jsonb_path_exists(stored, 'strict $.**{100} ? (@.type() == "object" || @.type() == "array")') THEN 'payload: is nested deeper than 100 levels'
    WHEN jsonb_path_exists(stored, 'lax $.**.__proto__') THEN 'payload: __proto__ is not an allowed name'
    WHEN jsonb_path_exists(stored, 'strict $.** ? (@.type() == "number" && (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308))') THEN 'payload: contains too large a number'
  END;
  IF wrong IS NOT NULL THEN
    RAISE EXCEPTION '%', wrong USING ERRCODE = 'LH002', HINT = 'INVALID_FIELD';
  END IF;

  SELECT t.slug, t.status, t.settings INTO tenant FROM leasehold.tenants t WHERE t.schema_name = schema_name;
  IF tenant.status IS DISTINCT FROM 'ACTIVE' THEN
    RAISE EXCEPTION 'The tenant is %.', coalesce(tenant.status, 'unknown') USING ERRCODE = 'LH004', HINT = 'TENANT_SUSPENDED';
  END IF;

  hash := 'sql:' || encode(sha256(convert_to(jsonb_build_array(type, stored, target, extract(epoch FROM run_at), priority, queue,
    max_attempts, timeout_seconds, expires_in_seconds, on_error, author)::text, 'UTF8')), 'base64');
  IF idempotency_key IS NOT NULL THEN
    SELECT j.id, j.request_hash INTO found_id, found_hash
      FROM "tenant_template".jobs j WHERE j.client_request_id = idempotency_key;
  END IF;

  IF found_id IS NULL THEN
    SELECT d.* INTO definition FROM leasehold.job_types d WHERE d.type = type;
    is_live := EXISTS (SELECT FROM leasehold.daemons d
                        WHERE d.last_beat_at > now() - interval '30 seconds' AND type = ANY (d.job_types));
    is_remote := NOT is_live AND coalesce(tenant.settings -> 'remote_job_types' ?| array['*', type], false);
    IF definition IS NULL AND NOT is_live AND NOT is_remote THEN
      RAISE EXCEPTION 'No handler or worker knows the job type "%".', type USING ERRCODE = 'LH003', HINT = 'UNKNOWN_JOB_TYPE';
    END IF;

    max_queued := (tenant.settings ->> 'max_queued')::integer;
    IF max_queued IS NOT NULL THEN
      SELECT count(*) INTO waiting FROM (
        (SELECT FROM "tenant_template".jobs j WHERE j.status = 'QUEUED' AND j.lane_head AND NOT j.remote LIMIT max_queued)
        UNION ALL
        (SELECT FROM "tenant_template".jobs j WHERE j.status = 'QUEUED' AND j.lane_head AND j.remote LIMIT max_queued)
        UNION ALL
        (SELECT FROM "tenant_template".jobs j WHERE j.lane_rank IS NOT NULL AND j.status = 'QUEUED' LIMIT max_queued)
        UNION ALL
        (SELECT FROM "tenant_template".jobs j WHERE j.status = 'PENDING' LIMIT max_queued)) w;
      IF waiting >= max_queued THEN
        RAISE EXCEPTION 'The tenant has % waiting jobs; its limit (max_queued) is %.', waiting, max_queued
          USING ERRCODE = 'LH006', HINT = 'QUEUE_FULL';
      END IF;
    END IF;

    status := CASE WHEN target IS NOT NULL OR run_at > now() THEN 'PENDING' ELSE 'QUEUED' END;
    INSERT INTO "tenant_template".jobs (
      id, type, payload, target_id, priority, queue, remote, status, lane_head, max_attempts, retry, timeout_seconds, on_error,
      client_request_id, request_hash, author, run_at, created_at, updated_at, expires_at)
    VALUES (
      job_id, type, stored, target, rank, queue, is_remote, status, target IS NULL,
      coalesce(max_attempts, definition.max_attempts, 1), definition.retry, coalesce(timeout_seconds, definition.timeout_seconds),
      coalesce(on_error, definition.on_error, 'block'), idempotency_key,
      CASE WHEN idempotency_key IS NOT NULL THEN hash END, author,
      coalesce(run_at, CASE WHEN status = 'PENDING' THEN called_at END, now()), now(), now(),
      now() + expires_in_seconds * interval '1 second')
    ON CONFLICT (client_request_id) WHERE client_request_id IS NOT NULL DO NOTHING;

    IF FOUND THEN
      INSERT INTO "tenant_template".phases (job_id, name, position)
      SELECT job_id, p.name, p.position - 1 FROM unnest(definition.phases) WITH ORDINALITY AS p(name, position);
      INSERT INTO "tenant_template".events (type, job_id, target_id, to_status, attempt, actor)
      VALUES ('job.enqueued', job_id, target, status, 0, 'sql:' || session_user);
      PERFORM pg_notify('leasehold_wake', '-:+' || tenant.slug);
      RETURN job_id;
    END IF;
    -- Another transaction used the key and has committed meanwhile.
    SELECT j.id, j.request_hash INTO found_id, found_hash
      FROM "tenant_template".jobs j WHERE j.client_request_id = idempotency_key;
  END IF;

  IF found_hash IS DISTINCT FROM hash THEN
    RAISE EXCEPTION 'This idempotency key was used with another request; use a new key for a new request.'
      USING ERRCODE = 'LH005', HINT = 'IDEMPOTENCY_CONFLICT', DETAIL = 'job ' || found_id;
  END IF;
  RETURN found_id;
END
$$;
--> statement-breakpoint
REVOKE ALL ON FUNCTION "tenant_template".enqueue FROM PUBLIC;
