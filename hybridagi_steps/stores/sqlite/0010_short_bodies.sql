-- Bodies leave out the status that nearly every step has, and what they say twice (see
-- stores/body.py); words may be deflated. Earlier versions would misread either.
DROP VIEW step_view;
DROP VIEW step_tail;
CREATE VIEW step_tail AS
SELECT
    n.id AS namespace, s.row AS row,
    CAST(json_extract(s.body, '$.parent_id') AS TEXT) AS parent_id,
    CAST(json_extract(s.body, '$.run_id') AS TEXT) AS run_id,
    CAST(coalesce(json_extract(s.body, '$.hop'), 0) AS INTEGER) AS hop,
    CAST(json_extract(s.body, '$.session_id') AS TEXT) AS session_id,
    CAST(json_extract(s.body, '$.user_id') AS TEXT) AS user_id,
    CAST(json_extract(s.body, '$.program_id') AS TEXT) AS program_id,
    CAST(CASE WHEN json_extract(s.body, '$.step_type') IN ('ProgramCall', 'ProgramEnd')
               AND json_type(s.body, '$.inputs.program') = 'text'
              THEN json_extract(s.body, '$.inputs.program') END AS TEXT) AS program,
    CAST(CASE WHEN json_type(s.body, '$.inputs.tool') = 'text'
              THEN json_extract(s.body, '$.inputs.tool') END AS TEXT) AS tool,
    CAST(json_extract(s.body, '$.step_type') AS TEXT) AS step_type,
    CAST(json_extract(s.body, '$.scope') AS TEXT) AS scope,
    CAST(CASE WHEN s.body <> '{}' AND json_type(s.body, '$.status') IS NULL THEN 'ok'
              ELSE json_extract(s.body, '$.status') END AS TEXT) AS status,
    CAST(json_extract(s.body, '$.score') AS REAL) AS score,
    CAST(json_extract(s.body, '$.created_at') AS TEXT) AS created_at,
    CAST(json_extract(s.body, '$.metadata') AS TEXT) AS metadata,
    s.branch_id AS branch_id
FROM namespace n CROSS JOIN step_json s ON s.row > n.keys_through AND +s.namespace = n.id;
CREATE VIEW step_view AS
SELECT namespace, row, parent_id, run_id, hop, session_id, user_id, program_id, program, tool,
       step_type, scope, status, score, created_at, metadata, branch_id FROM step_key
UNION ALL
SELECT namespace, row, parent_id, run_id, hop, session_id, user_id, program_id, program, tool,
       step_type, scope, status, score, created_at, metadata, branch_id FROM step_tail;
