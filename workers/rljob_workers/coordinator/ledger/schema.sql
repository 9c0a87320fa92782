-- The coordinator's ledger. One writer; WAL. States are those of rljob_api.enums.GroupState and VersionState.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE sessions (
  token TEXT PRIMARY KEY, role TEXT NOT NULL, pod TEXT NOT NULL, boot_id TEXT NOT NULL,
  attempt INTEGER NOT NULL, rank INTEGER NOT NULL, resume_step INTEGER NOT NULL,
  opened_at REAL NOT NULL, fenced_at REAL
) WITHOUT ROWID;
CREATE UNIQUE INDEX sessions_boot ON sessions (role, pod, rank, boot_id);
CREATE INDEX sessions_fenced ON sessions (fenced_at) WHERE fenced_at IS NOT NULL;

-- One row per use of a prompt. A prompt offered again after a drop is a new row with `parent` set; a further attempt is not.
CREATE TABLE groups (
  group_id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL,
  source TEXT NOT NULL, prompt_index INTEGER NOT NULL, prompt_id TEXT NOT NULL,
  epoch INTEGER NOT NULL, position INTEGER NOT NULL, copy INTEGER NOT NULL,
  queue_key INTEGER NOT NULL,      -- smaller is served earlier; the head of the queue is below the smallest
  group_size INTEGER NOT NULL, attempt INTEGER NOT NULL,
  infra_attempts INTEGER NOT NULL DEFAULT 0, data_attempts INTEGER NOT NULL DEFAULT 0,
  lease_order INTEGER,             -- order of the first lease
  granted_step INTEGER,            -- step of the version that the current lease's worker begins with
  min_step INTEGER,                -- smallest step of a sampled token's version; set at SUBMITTED
  max_step INTEGER,                -- largest one
  finished_step INTEGER,           -- P at submission
  num_rows INTEGER, num_failures INTEGER,
  created_at REAL NOT NULL, leased_at REAL, submitted_at REAL, closed_at REAL,
  generate_started_at REAL, generate_finished_at REAL, verify_s REAL,
  drop_reason TEXT, drop_step INTEGER, step INTEGER, step_position INTEGER,
  eval_step INTEGER, parent TEXT
) WITHOUT ROWID;
-- By state, of what is under way only: what ended is most of the table. A query must name its state to use one.
CREATE INDEX groups_open ON groups (kind, state, queue_key)
  WHERE state = 'queued' OR state = 'leased' OR state = 'submitted' OR state = 'packed';
CREATE INDEX groups_ready ON groups (min_step, lease_order) WHERE kind = 'train' AND state = 'submitted';
CREATE INDEX groups_step ON groups (step, step_position) WHERE step IS NOT NULL;
CREATE INDEX groups_drop ON groups (drop_step, drop_reason) WHERE drop_step IS NOT NULL;
CREATE INDEX groups_eval ON groups (eval_step, state) WHERE eval_step IS NOT NULL;

-- Raw rewards of the answers that a filter left out while the batch of a step was gathered.
CREATE TABLE left_out (step INTEGER PRIMARY KEY, num_rows INTEGER NOT NULL, total REAL NOT NULL, total_squares REAL NOT NULL);

-- What is left of groups that nothing needs any more (retention.py): one row per slice of groups with the same fate.
CREATE TABLE pruned (
  slice INTEGER PRIMARY KEY,
  fate TEXT NOT NULL,              -- trained, evaluated, or the reason of the drop
  step INTEGER,                    -- of the batch that they were trained in, or of the evaluation
  num_groups INTEGER NOT NULL, num_accepted INTEGER NOT NULL,
  first_group INTEGER NOT NULL, last_group INTEGER NOT NULL,   -- smallest and largest number of a group id
  members BLOB NOT NULL            -- one value per group and column: JSON, zlib
);
CREATE INDEX pruned_step ON pruned (step, fate) WHERE step IS NOT NULL;
CREATE INDEX pruned_groups ON pruned (last_group, first_group);

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
CREATE INDEX leases_open ON leases (session, deadline) WHERE state = 'open';
CREATE INDEX leases_due ON leases (deadline) WHERE state = 'open';
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
  created_at REAL NOT NULL, live_at REAL, manifest BLOB,
  -- artifact is the whole image, changes are against version base; '' where there is none.
  num_bytes INTEGER NOT NULL DEFAULT 0, changes TEXT NOT NULL DEFAULT '', changes_bytes INTEGER NOT NULL DEFAULT 0,
  base INTEGER NOT NULL DEFAULT -1
);
CREATE INDEX versions_step ON versions (step, version);
CREATE INDEX versions_stored ON versions (version) WHERE state <> 'retired';
CREATE INDEX versions_live ON versions (version) WHERE live_at IS NOT NULL;
CREATE TABLE layouts (layout_id TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE checkpoints (step INTEGER PRIMARY KEY, uri TEXT NOT NULL, at REAL NOT NULL, seconds REAL NOT NULL, final INTEGER NOT NULL);

CREATE INDEX checkpoints_at ON checkpoints (at);

CREATE TABLE evaluations (
  step INTEGER PRIMARY KEY, version INTEGER NOT NULL, state TEXT NOT NULL,     -- running, done
  created_at REAL NOT NULL, started_at REAL, finished_at REAL
);
CREATE TABLE eval_results (step INTEGER NOT NULL, suite TEXT NOT NULL, version INTEGER NOT NULL, result TEXT NOT NULL, PRIMARY KEY (step, suite)) WITHOUT ROWID;
CREATE TABLE syncs (pod TEXT PRIMARY KEY, finished_at REAL NOT NULL) WITHOUT ROWID;   -- the newest reported
CREATE TABLE history (seq INTEGER PRIMARY KEY AUTOINCREMENT, line TEXT NOT NULL);
