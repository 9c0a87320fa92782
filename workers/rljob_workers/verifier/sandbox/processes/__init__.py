"""How processes are started, limited, watched and ended: grading workers, and programs of the policy."""
