-- The coordinator's ledger. One writer; WAL. States are those of rljob_api.names.GroupState and VersionState.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE sessions (
  token TEXT PRIMARY KEY, role TEXT NOT NULL, pod TEXT NOT NULL, boot_id TEXT NOT NULL,
  attempt INTEGER NOT NULL, rank INTEGER NOT NULL, resume_step INTEGER NOT NULL,
  opened_at REAL NOT NULL, fenced_at REAL
) WITHOUT ROWID;
CREATE UNIQUE INDEX sessions_boot ON sessions (role, pod, rank, boot_id);

-- One row per use of a prompt. A prompt offered again after a drop is a new row with `parent` set; a further attempt is not.
CREATE TABLE groups (
  group_id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL,
  source TEXT NOT NULL, prompt_index INTEGER NOT NULL, prompt_id TEXT NOT NULL,
  epoch INTEGER NOT NULL, position INTEGER NOT NULL, copy INTEGER NOT NULL,
  queue_key INTEGER NOT NULL,      -- smaller is served earlier; the head of the queue is below the smallest
  group_size INTEGER NOT NULL, attempt INTEGER NOT NULL,
  infra_attempts INTEGER NOT NULL DEFAULT 0, data_attempts INTEGER NOT NULL DEFAULT 0,
  lease_order INTEGER,             -- order of the first lease
  granted_step INTEGER,            -- step of the version that the current lease's worker served
  min_step INTEGER,                -- smallest step of a sampled token's version; set at SUBMITTED
  max_step INTEGER,                -- largest one
  finished_step INTEGER,           -- P at submission
  num_rows INTEGER, num_failures INTEGER,
  created_at REAL NOT NULL, leased_at REAL, submitted_at REAL, closed_at REAL,
  generate_started_at REAL, generate_finished_at REAL, verify_s REAL,
  drop_reason TEXT, drop_step INTEGER, step INTEGER, step_position INTEGER,
  eval_step INTEGER, parent TEXT
) WITHOUT ROWID;
CREATE INDEX groups_queue ON groups (kind, state, queue_key);
CREATE INDEX groups_step ON groups (step, step_position);
CREATE INDEX groups_drop ON groups (drop_step, drop_reason);

-- Raw rewards of an epoch's groups, summed by prompt: what a curriculum decides by. Empty without one.
CREATE TABLE scores (
  epoch INTEGER NOT NULL, source TEXT NOT NULL, prompt_index INTEGER NOT NULL,
  total REAL NOT NULL, num_groups INTEGER NOT NULL, PRIMARY KEY (epoch, source, prompt_index)
) WITHOUT ROWID;

CREATE TABLE leases (
  lease_id TEXT PRIMARY KEY, group_id TEXT NOT NULL, attempt INTEGER NOT NULL, session TEXT NOT NULL,
  state TEXT NOT NULL,             -- open, done, lost, released, cancelled
  granted_at REAL NOT NULL, deadline REAL NOT NULL, floor_step INTEGER NOT NULL,
  target_step INTEGER NOT NULL, granted_version INTEGER NOT NULL, granted_step INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX leases_open ON leases (state, session);
CREATE INDEX leases_group ON leases (group_id, attempt);

CREATE TABLE payloads (group_id TEXT PRIMARY KEY, attempt INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE answers (
  group_id TEXT NOT NULL, attempt INTEGER NOT NULL, outcome TEXT NOT NULL, detail TEXT NOT NULL, at REAL NOT NULL,
  PRIMARY KEY (group_id, attempt)
) WITHOUT ROWID;

CREATE TABLE steps (
  step INTEGER PRIMARY KEY, state TEXT NOT NULL,     -- packed, trained
  world_size INTEGER NOT NULL, minibatches TEXT NOT NULL, summary TEXT NOT NULL,
  num_groups INTEGER NOT NULL, packed_at REAL NOT NULL, trained_at REAL, attempt INTEGER, stats TEXT
);
CREATE TABLE batch_parts (
  step INTEGER NOT NULL, rank INTEGER NOT NULL, seq INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (step, rank, seq)
);
CREATE TABLE attempts (                              -- one row per trainer attempt
  attempt INTEGER PRIMARY KEY, resume_step INTEGER NOT NULL, handed_step INTEGER NOT NULL, stop_step INTEGER
);

CREATE TABLE versions (
  version INTEGER PRIMARY KEY, step INTEGER NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL,
  superseded INTEGER NOT NULL DEFAULT 0, state_hash TEXT NOT NULL, artifact TEXT NOT NULL,
  created_at REAL NOT NULL, live_at REAL, manifest BLOB
);
CREATE TABLE layouts (layout_id TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE checkpoints (step INTEGER PRIMARY KEY, uri TEXT NOT NULL, at REAL NOT NULL, seconds REAL NOT NULL, final INTEGER NOT NULL);

CREATE TABLE evaluations (
  step INTEGER PRIMARY KEY, version INTEGER NOT NULL, state TEXT NOT NULL,     -- running, done
  created_at REAL NOT NULL, started_at REAL, finished_at REAL
);
CREATE TABLE eval_results (step INTEGER NOT NULL, suite TEXT NOT NULL, version INTEGER NOT NULL, result TEXT NOT NULL, PRIMARY KEY (step, suite)) WITHOUT ROWID;
CREATE TABLE syncs (pod TEXT NOT NULL, version INTEGER NOT NULL, finished_at REAL NOT NULL, PRIMARY KEY (pod, version, finished_at)) WITHOUT ROWID;
CREATE TABLE history (seq INTEGER PRIMARY KEY AUTOINCREMENT, line TEXT NOT NULL);
