"""Where volumes appear in a pod, beside what `cluster_placement` tells the programs, and how long it takes to end."""

from rljob_api import cluster_placement

CONFIG = cluster_placement.CONFIG_DIR
STATE = cluster_placement.STORAGE_DIR
CACHE = cluster_placement.CACHE_DIR
TLS = cluster_placement.TLS_DIR
MODEL = cluster_placement.MODEL_DIR
CODE = cluster_placement.CODE_DIR
SCRATCH = "/tmp"
SHARED_MEMORY = "/dev/shm"
# Room between the end of the stop hook and the kubelet's SIGKILL.
KILL_AFTER_S = 15
