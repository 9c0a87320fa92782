"""Where volumes appear in a pod, beside what `rljob_api.cluster_placement` tells the programs."""

from rljob_api import cluster_placement

CONFIG = cluster_placement.CONFIG_DIR
STATE = cluster_placement.STORAGE_DIR
CACHE = cluster_placement.CACHE_DIR
# Beside CONFIG and not below it: a mount inside a read-only mount cannot be made.
TLS = "/etc/rljob-tls"
SCRATCH = "/tmp"
SHARED_MEMORY = "/dev/shm"
