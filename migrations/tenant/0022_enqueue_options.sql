-- The function `enqueue` with unique keys, limits and jobs that have to succeed first, and with the idempotency keys of the
-- HTTP API: the same request under the same key is one job, whichever of the two it comes through. It is made anew, because it
-- has more arguments; who may execute it stays as it was.

-- The text of canonicalJson() in server/kernel/json.ts: sorted names, numbers as JavaScript writes them.
CREATE FUNCTION "tenant_template".canonical_json(value jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  whole text;
  fraction text;
  digits text;
  exponent integer;
  point integer;
  sign text := '';
  number double precision;
  shorter text;
BEGIN
  CASE jsonb_typeof(value)
    WHEN 'object' THEN
      RETURN '{' || coalesce((
        SELECT string_agg(to_jsonb(e.key)::text || ':' || CASE
                 WHEN jsonb_typeof(e.value) IN ('object', 'array')
                   OR (jsonb_typeof(e.value) = 'number' AND e.value::text !~ '^(0|-?[1-9][0-9]{0,14})$')
                 THEN "tenant_template".canonical_json(e.value)
                 ELSE e.value::text
               END, ','
               -- Names that are array indexes come first in JavaScript, by their value.
               ORDER BY CASE WHEN e.key ~ '^(0|[1-9][0-9]{0,9})$' AND e.key::bigint < 4294967295 THEN e.key::bigint END,
                        e.key COLLATE "C")
          FROM jsonb_each(value) e), '') || '}';
    WHEN 'array' THEN
      RETURN '[' || coalesce((
        SELECT string_agg(CASE
                 WHEN jsonb_typeof(e.value) IN ('object', 'array')
                   OR (jsonb_typeof(e.value) = 'number' AND e.value::text !~ '^(0|-?[1-9][0-9]{0,14})$')
                 THEN "tenant_template".canonical_json(e.value)
                 ELSE e.value::text
               END, ',' ORDER BY e.n)
          FROM jsonb_array_elements(value) WITH ORDINALITY AS e(value, n)), '') || ']';
    WHEN 'number' THEN
      IF abs((value #>> '{}')::numeric) < 2.5e-324 THEN
        RETURN '0';
      END IF;
      number := (value #>> '{}')::numeric;
      digits := number::text;
      exponent := coalesce(nullif(split_part(digits, 'e', 2), '')::integer, 0);
      digits := split_part(digits, 'e', 1);
      IF left(digits, 1) = '-' THEN
        sign := '-';
        digits := substr(digits, 2);
      END IF;
      whole := split_part(digits, '.', 1);
      fraction := split_part(digits, '.', 2);
      digits := ltrim(whole || fraction, '0');
      -- The value is 0.<digits> times ten to the power of `point`.
      point := length(whole) + exponent - (length(whole) + length(fraction) - length(digits));
      digits := rtrim(digits, '0');
      -- Postgres writes one digit more where a shorter text lies just between two numbers, and still means this one.
      WHILE length(digits) > 15 AND abs(number) < 1.797e308 LOOP
        shorter := round(digits::numeric / 10)::text;
        EXIT WHEN (shorter || 'e' || point - length(digits) + 1)::double precision <> abs(number);
        point := point + length(shorter) - length(digits) + 1;
        digits := rtrim(shorter, '0');
      END LOOP;
      RETURN sign || CASE
        WHEN point BETWEEN length(digits) AND 21 THEN rpad(digits, point, '0')
        WHEN point BETWEEN 1 AND 21 THEN substr(digits, 1, point) || '.' || substr(digits, point + 1)
        WHEN point BETWEEN -5 AND 0 THEN '0.' || repeat('0', -point) || digits
        ELSE substr(digits, 1, 1) || CASE WHEN length(digits) > 1 THEN '.' || substr(digits, 2) ELSE '' END
          || 'e' || CASE WHEN point > 0 THEN '+' ELSE '-' END || abs(point - 1)
      END;
    ELSE
      RETURN value::text;
  END CASE;
END
$$;
--> statement-breakpoint
REVOKE ALL ON FUNCTION "tenant_template".canonical_json FROM PUBLIC;
--> statement-breakpoint
-- What limitKeysOf() in server/jobs/limits/limit-keys.ts returns, for the limits of this tenant and moment.
CREATE FUNCTION "tenant_template".limit_keys(
  job_type text, job_queue text, is_remote boolean, job_target text, job_author text, job_payload jsonb
) RETURNS text[]
LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN count(*) > 0 THEN
           array[CASE WHEN is_remote THEN 'queue:' ELSE 'type:' END
             || CASE WHEN octet_length(w.claimant) > 64 THEN md5(w.claimant) ELSE w.claimant END]
           || array_agg(k.name || CASE WHEN k.key IS NULL THEN ''
                WHEN octet_length(k.value) > 64 THEN ':' || md5(k.value) ELSE ':' || k.value END
              ORDER BY k.name COLLATE "C")
         END
    FROM (SELECT CASE WHEN is_remote THEN job_queue ELSE job_type END AS claimant) AS w
   CROSS JOIN (
     SELECT l.name, l.definition ->> 'key' AS key, coalesce(CASE
              WHEN l.definition ->> 'key' = 'target_id' THEN job_target
              WHEN l.definition ->> 'key' = 'author' THEN job_author
              WHEN jsonb_typeof(c.counted) = 'number' THEN "tenant_template".canonical_json(c.counted)
              WHEN jsonb_typeof(c.counted) IN ('string', 'boolean') THEN c.counted #>> '{}'
            END, '') AS value
       FROM (
         SELECT DISTINCT ON (d.name COLLATE "C") d.name, d.definition
           FROM (
             SELECT e.key AS name, e.value AS definition, 0 AS source, '' AS type
               FROM leasehold.tenants t
              CROSS JOIN LATERAL jsonb_each(coalesce(t.settings -> 'limits', '{}')) AS e
              WHERE t.schema_name = btrim('"tenant_template"', '"')
             UNION ALL
             SELECT e.key, e.value || jsonb_build_object('type', t.type), 1, t.type
               FROM leasehold.job_types t
              CROSS JOIN LATERAL jsonb_each(coalesce(t.limits, '{}')) AS e
           ) AS d
          ORDER BY d.name COLLATE "C", d.source, octet_length(d.type) DESC, d.type COLLATE "C" DESC
          LIMIT 20
       ) AS l
      CROSS JOIN LATERAL (SELECT job_payload #> (string_to_array(l.definition ->> 'key', '.'))[2:] AS counted) AS c
      WHERE coalesce(l.definition ->> 'type', job_type) = job_type
        AND coalesce(l.definition ->> 'queue', job_queue) = job_queue
   ) AS k
   GROUP BY w.claimant
$$;
--> statement-breakpoint
REVOKE ALL ON FUNCTION "tenant_template".limit_keys FROM PUBLIC;
--> statement-breakpoint
-- Locks the key until the end of the transaction, and returns the job that holds it; see server/jobs/enqueue/unique-jobs.ts.
CREATE FUNCTION "tenant_template".lock_unique_key(job_type text, job_key text) RETURNS uuid
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO "tenant_template".unique_keys (type, key, used_at)
  VALUES (job_type, job_key, now())
  ON CONFLICT (type, key) DO UPDATE SET used_at = excluded.used_at;
  -- A statement of its own: it sees what was committed before the lock was granted.
  RETURN (
    SELECT u.job_id
      FROM "tenant_template".unique_keys u
      JOIN "tenant_template".jobs j ON j.id = u.job_id
     WHERE u.type = job_type
       AND u.key = job_key
       AND CASE
             WHEN u.held_until IS NOT NULL THEN u.held_until > now()
             WHEN j.status IN ('SUCCESS', 'PARTIAL', 'CANCELED') THEN false
             ELSE u.until = 'finished' OR j.attempt = 0
           END);
END
$$;
--> statement-breakpoint
REVOKE ALL ON FUNCTION "tenant_template".lock_unique_key FROM PUBLIC;
--> statement-breakpoint
ALTER FUNCTION "tenant_template".enqueue RENAME TO enqueue_before;
--> statement-breakpoint
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
  author text DEFAULT NULL,
  after text[] DEFAULT NULL,
  on_failure text DEFAULT 'hold',
  unique_key text DEFAULT NULL,
  unique_until text DEFAULT 'finished',
  unique_conflict text DEFAULT 'skip'
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
#variable_conflict use_variable
DECLARE
  schema_name text := btrim('"tenant_template"', '"');
  tenant record;
  definition record;
  is_live boolean;
  is_remote boolean;
  rank smallint := array_position(array['URGENT', 'HIGH', 'NORMAL', 'LOW'], priority) - 1;
  stored jsonb := CASE WHEN payload IS NULL OR payload = 'null'::jsonb THEN '{}'::jsonb ELSE payload END;
  time_text text := to_char(run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
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
  holder record;
  keys text[];
  after_ids uuid[];
  after_succeeded boolean[];
  unknown text;
  is_ready boolean := true;
  -- What events of this transaction have as their xid. Read from the tenant's node, not from a default, which a
  -- cluster evaluates on its coordinator.
  log_xid xid8;
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
    WHEN cardinality(after) > 1000 THEN 'after: must have at most 1000 jobs'
    WHEN EXISTS (SELECT FROM unnest(after) AS a(name) WHERE (char_length(a.name) BETWEEN 1 AND 200) IS NOT TRUE) THEN 'after: must name jobs with 1 to 200 characters'
    WHEN (on_failure IN ('hold', 'cancel', 'continue')) IS NOT TRUE THEN 'on_failure: must be hold, cancel or continue'
    WHEN char_length(unique_key) NOT BETWEEN 1 AND 200 THEN 'unique_key: must have 1 to 200 characters'
    WHEN unique_key ~ '[\u0001-\u001f\u007f-\u009f\u2028\u2029]|^\s|\s$' THEN 'unique_key: must contain printable characters only, without a space at its ends'
    WHEN (unique_until IN ('started', 'finished')
      OR CASE WHEN unique_until ~ '^[1-9][0-9]{0,10}$' THEN unique_until::bigint <= 31536000000 END) IS NOT TRUE
    THEN 'unique_until: must be started, finished or a number of seconds'
    WHEN (unique_conflict IN ('skip', 'replace', 'debounce')) IS NOT TRUE THEN 'unique_conflict: must be skip, replace or debounce'
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

  IF idempotency_key IS NOT NULL THEN
    -- As requestHash() of server/jobs/enqueue/job-request.ts: what has its default counts as left out.
    hash := (
      SELECT rtrim(translate(encode(sha256(convert_to(
               "tenant_template".canonical_json(jsonb_object_agg(r.name, r.value)), 'UTF8')), 'base64'), '+/', '-_'), '=')
        FROM (VALUES
               ('type', to_jsonb(type)),
               ('payload', stored),
               ('target_id', to_jsonb(target)),
               ('run_at', to_jsonb(time_text)),
               ('priority', to_jsonb(nullif(priority, 'NORMAL'))),
               ('queue', to_jsonb(nullif(queue, 'default'))),
               ('max_attempts', to_jsonb(max_attempts)),
               ('timeout_seconds', to_jsonb(timeout_seconds)),
               ('expires_in_seconds', to_jsonb(expires_in_seconds)),
               ('on_error', to_jsonb(on_error)),
               ('author', to_jsonb(author)),
               ('after', CASE
                  WHEN coalesce(cardinality(after), 0) = 0 THEN NULL
                  WHEN on_failure = 'hold' THEN to_jsonb(after)
                  ELSE (SELECT jsonb_agg(jsonb_build_object('job', a.name, 'on_failure', on_failure) ORDER BY a.n)
                          FROM unnest(after) WITH ORDINALITY AS a(name, n))
                END),
               ('unique', CASE WHEN unique_key IS NOT NULL THEN jsonb_build_object('key', unique_key, 'conflict', unique_conflict,
                  'until', CASE WHEN unique_until IN ('started', 'finished') THEN to_jsonb(unique_until)
                             ELSE to_jsonb(unique_until::bigint) END) END)
             ) AS r(name, value)
       WHERE r.value IS NOT NULL);
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
        (SELECT FROM "tenant_template".jobs j WHERE j.status = 'QUEUED' AND j.lane_head AND NOT j.remote AND NOT j.gated LIMIT max_queued)
        UNION ALL
        (SELECT FROM "tenant_template".jobs j WHERE j.status = 'QUEUED' AND j.lane_head AND j.remote AND NOT j.gated LIMIT max_queued)
        UNION ALL
        (SELECT FROM "tenant_template".jobs j WHERE j.gated AND j.lane_head AND j.status = 'QUEUED' LIMIT max_queued)
        UNION ALL
        (SELECT FROM "tenant_template".jobs j WHERE j.lane_rank IS NOT NULL AND j.status = 'QUEUED' LIMIT max_queued)
        UNION ALL
        (SELECT FROM "tenant_template".jobs j WHERE j.status = 'PENDING' LIMIT max_queued)) w;
      IF waiting >= max_queued THEN
        RAISE EXCEPTION 'The tenant has % waiting jobs; its limit (max_queued) is %.', waiting, max_queued
          USING ERRCODE = 'LH006', HINT = 'QUEUE_FULL';
      END IF;
    END IF;

    IF cardinality(after) > 0 THEN
      SELECT array_agg(d.id ORDER BY d.position) FILTER (WHERE d.id IS NOT NULL),
             array_agg(d.succeeded ORDER BY d.position) FILTER (WHERE d.id IS NOT NULL),
             coalesce(bool_and(d.succeeded), true),
             (array_agg(d.name ORDER BY d.position) FILTER (WHERE d.id IS NULL))[1]
        INTO after_ids, after_succeeded, is_ready, unknown
        FROM (
          SELECT DISTINCT ON (coalesce(i.id, k.id)::text, CASE WHEN coalesce(i.id, k.id) IS NULL THEN a.name END)
                 a.name, a.position, coalesce(i.id, k.id) AS id, coalesce(i.status, k.status) IN ('SUCCESS', 'PARTIAL') AS succeeded
            FROM unnest(after) WITH ORDINALITY AS a(name, position)
            LEFT JOIN "tenant_template".jobs i ON i.id = CASE
                   WHEN a.name ~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' THEN a.name::uuid END
            LEFT JOIN "tenant_template".jobs k ON k.client_request_id = a.name
           ORDER BY coalesce(i.id, k.id)::text, CASE WHEN coalesce(i.id, k.id) IS NULL THEN a.name END, a.position
        ) AS d;
      IF unknown IS NOT NULL THEN
        RAISE EXCEPTION 'after: there is no job %', to_jsonb(unknown) USING ERRCODE = 'LH002', HINT = 'INVALID_FIELD';
      END IF;
    END IF;

    SELECT CASE WHEN n.epoch = 0 THEN pg_current_xact_id()
             ELSE ((n.epoch::bigint << 48) + pg_current_xact_id()::text::bigint)::text::xid8 END
      INTO log_xid
      FROM (SELECT l.epoch + (l.relation <> l.tableoid::bigint OR l.written_by::xid <> l.xmin)::int AS epoch
              FROM "tenant_template".log_epochs l
             ORDER BY l.epoch DESC
             LIMIT 1) AS n;
    IF unique_key IS NOT NULL THEN
      found_id := "tenant_template".lock_unique_key(type, unique_key);
      IF found_id IS NOT NULL AND NOT EXISTS (
           SELECT FROM "tenant_template".jobs j WHERE j.client_request_id = idempotency_key) THEN
        IF unique_conflict <> 'skip' THEN
          -- Only what has never started and nobody owns. A job that is due stays due, and keeps its place in its lane.
          SELECT j.* INTO holder
            FROM "tenant_template".jobs j
           WHERE j.id = found_id AND j.attempt = 0 AND j.status IN ('PENDING', 'QUEUED', 'PAUSED', 'WAITING')
             FOR UPDATE;
          IF FOUND THEN
            author := coalesce(author, holder.author);
            keys := "tenant_template".limit_keys(holder.type, holder.queue, holder.remote, holder.target_id, author, stored);
            IF unique_conflict <> 'debounce' OR holder.status <> 'PENDING' THEN
              run_at := holder.run_at;
            END IF;
            UPDATE "tenant_template".jobs AS j
               SET payload = stored,
                   author = author,
                   run_at = coalesce(run_at, called_at),
                   limit_keys = keys,
                   gated = CASE WHEN j.limit_keys IS NOT DISTINCT FROM keys THEN j.gated
                     ELSE j.status = 'QUEUED' AND keys IS NOT NULL END,
                   updated_at = now()
             WHERE j.id = found_id;
            INSERT INTO "tenant_template".events (xid, type, job_id, target_id, from_status, to_status, attempt, actor, data)
            VALUES (log_xid, 'job.replaced', found_id, holder.target_id, holder.status, holder.status, 0, 'sql:' || session_user,
              jsonb_build_object('run_at', coalesce(run_at, called_at)));
            PERFORM pg_notify('leasehold_wake', '-:+' || tenant.slug);
          END IF;
        END IF;
        RETURN found_id;
      END IF;
    END IF;

    status := CASE
      WHEN NOT is_ready THEN 'WAITING'
      WHEN target IS NOT NULL OR run_at > now() THEN 'PENDING'
      ELSE 'QUEUED'
    END;
    keys := "tenant_template".limit_keys(type, queue, is_remote, target, author, stored);
    INSERT INTO "tenant_template".jobs (
      id, type, payload, target_id, priority, queue, remote, status, lane_head, max_attempts, retry, timeout_seconds, on_error,
      client_request_id, request_hash, author, run_at, created_at, updated_at, expires_at, limit_keys, gated, waiting, held_since)
    VALUES (
      job_id, type, stored, target, rank, queue, is_remote, status, target IS NULL,
      coalesce(max_attempts, definition.max_attempts, 1), definition.retry, coalesce(timeout_seconds, definition.timeout_seconds),
      coalesce(on_error, definition.on_error, 'block'), idempotency_key, hash, author,
      CASE WHEN status = 'WAITING' THEN timestamptz '9999-12-31T00:00:00.000Z'
        ELSE coalesce(run_at, CASE WHEN status = 'PENDING' THEN called_at END, now()) END,
      now(), now(), now() + expires_in_seconds * interval '1 second', keys, keys IS NOT NULL,
      CASE WHEN status = 'WAITING' THEN jsonb_build_object('kind', 'after', 'jobs', cardinality(after_ids))
        || CASE WHEN run_at IS NULL THEN '{}' ELSE jsonb_build_object('not_before', time_text) END END,
      CASE WHEN status = 'WAITING' THEN now() END)
    ON CONFLICT (client_request_id) WHERE client_request_id IS NOT NULL DO NOTHING;

    IF FOUND THEN
      INSERT INTO "tenant_template".phases (job_id, name, position)
      SELECT job_id, p.name, p.position - 1 FROM unnest(definition.phases) WITH ORDINALITY AS p(name, position);
      INSERT INTO "tenant_template".dependencies (job_id, after_id, position, on_failure, state)
      SELECT job_id, d.id, d.position - 1, on_failure, CASE WHEN d.succeeded THEN 'succeeded' ELSE 'open' END
        FROM unnest(after_ids, after_succeeded) WITH ORDINALITY AS d(id, succeeded, position);
      IF unique_key IS NOT NULL THEN
        UPDATE "tenant_template".unique_keys AS u
           SET job_id = job_id,
               until = CASE WHEN unique_until IN ('started', 'finished') THEN unique_until ELSE 'seconds' END,
               held_until = CASE WHEN unique_until NOT IN ('started', 'finished')
                 THEN called_at + unique_until::bigint * interval '1 second' END
         WHERE u.type = type AND u.key = unique_key;
      END IF;
      INSERT INTO "tenant_template".events (xid, type, job_id, target_id, to_status, attempt, actor)
      VALUES (log_xid, 'job.enqueued', job_id, target, status, 0, 'sql:' || session_user);
      PERFORM pg_notify('leasehold_wake', '-:+' || tenant.slug);
      RETURN job_id;
    END IF;
    -- Another transaction used the key and has committed meanwhile.
    SELECT j.id, j.request_hash INTO found_id, found_hash
      FROM "tenant_template".jobs j WHERE j.client_request_id = idempotency_key;
  END IF;

  -- Jobs that the earlier version of this function made have a hash of their own.
  IF found_hash LIKE 'sql:%' AND after IS NULL AND unique_key IS NULL THEN
    hash := 'sql:' || encode(sha256(convert_to(jsonb_build_array(type, stored, target, extract(epoch FROM run_at), priority, queue,
      max_attempts, timeout_seconds, expires_in_seconds, on_error, author)::text, 'UTF8')), 'base64');
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
--> statement-breakpoint
DO $$
DECLARE
  granted record;
BEGIN
  FOR granted IN
    SELECT a.grantee, a.is_grantable
      FROM pg_proc p
     CROSS JOIN LATERAL aclexplode(p.proacl) a
     WHERE p.oid = '"tenant_template".enqueue_before'::regproc
       AND a.grantee <> p.proowner
  LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION "tenant_template".enqueue TO %s%s',
      CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END,
      CASE WHEN granted.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
  END LOOP;
END
$$;
--> statement-breakpoint
DROP FUNCTION "tenant_template".enqueue_before;
