# Rollout and trainer: vLLM and DeepSpeed. Build from the repository's root, for CPUs or for CUDA:
#   buildah bud --build-arg BASE_IMAGE=... --build-arg DEVICE=cpu -f workers/worker.Dockerfile -t rljob-worker .
#   buildah bud --build-arg BASE_IMAGE=... --build-arg DEVICE=cuda -f workers/worker.Dockerfile -t rljob-worker-cuda .
# Any base with python3 3.11, its venv module and CA certificates serves as BASE_IMAGE, for CUDA too: its libraries come as
# wheels, and the driver from the node.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm
ARG DEVICE=cpu

FROM ${BASE_IMAGE} AS environment
ARG DEVICE
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
# vLLM on CPU binds memory to NUMA nodes and fails at its start without libnuma. On CUDA triton compiles a launcher for each
# kernel, which takes a C compiler and Python's headers, and so does torch's inductor.
RUN set -eu; packages=libnuma1; \
    if [ "$DEVICE" = cuda ]; then packages="libnuma1 gcc g++ libc6-dev"; \
      test -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || packages="$packages python3-dev"; \
    fi; \
    apt-get update; apt-get install -y --no-install-recommends $packages; rm -rf /var/lib/apt/lists/*
COPY workers/constraints/worker-${DEVICE}.txt /opt/lock.txt
# The packages are gigabytes: they are written once, in this layer, and what installed them goes with it. Of a torch that
# was built for CUDA a CPU needs what it is linked to; what is loaded when a GPU computes goes, and headers: there is no
# compiler. Our own code is a layer of its own, so that a change of it moves none of the packages.
RUN python3 -m venv /opt/uv && /opt/uv/bin/python -m pip install -q --disable-pip-version-check uv==0.13.8 \
    && python3 -m venv --without-pip /opt/rljob \
    && UV_COMPILE_BYTECODE_TIMEOUT=600 /opt/uv/bin/uv pip sync -q --require-hashes --python /opt/rljob/bin/python /opt/lock.txt \
    && cd "$(/opt/rljob/bin/python -c 'import site; print(site.getsitepackages()[0])')" \
    && { test "$DEVICE" != cpu || rm -rf nvidia/*/include torch/include torch/lib/libtorch_cuda_linalg.so \
         nvidia/cudnn/lib/libcudnn_*.so* nvidia/*/lib/libcusolverMg.so* nvidia/*/lib/libnvrtc.alt.so* nvidia/*/lib/libnvperf_*; } \
    && echo /opt/product > product.pth \
    && rm -rf /opt/uv && /opt/rljob/bin/python -c "import torch; assert float(torch.ones(2) @ torch.ones(2)) == 2"

FROM ${BASE_IMAGE} AS product
# Where it will run: the programs' first lines name this Python.
RUN python3 -m venv /opt/rljob
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY operator operator
COPY workers workers
COPY sdk sdk
RUN /opt/rljob/bin/python -m pip install -q --disable-pip-version-check --no-deps --target /opt/product .

# A built-in model is converted here once, and not by every pod.
FROM environment AS models
COPY --from=product /opt/product /opt/product
# A program that cannot start ends the build here.
RUN /opt/rljob/bin/python -m rljob_workers.models.builtin /opt/models \
    && for role in rollout trainer; do /opt/product/bin/rljob-$role --help > /dev/null || exit 1; done

FROM environment AS worker
COPY --from=models /opt/models /opt/models
COPY --from=product /opt/product /opt/product
ENV RLJOB_BUILTIN_MODELS=/opt/models
ENV PATH=/opt/product/bin:/opt/rljob/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1
# A name for the uid: libraries ask for it.
RUN echo "rljob:x:65532:65532::/tmp:/usr/sbin/nologin" >> /etc/passwd
WORKDIR /
USER 65532:65532
CMD ["rljob-rollout", "--help"]

FROM worker AS cpu
# There is no compiler for torch's inductor in a pod.
ENV RLJOB_IMAGE_DEVICE=cpu TORCHDYNAMO_DISABLE=1

FROM worker AS cuda
# What of the driver the container toolkit brings in: without a word, not the library that computes. Which devices, the
# device plugin says: a pod that asks for none gets none.
ENV RLJOB_IMAGE_DEVICE=cuda NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM ${DEVICE}
