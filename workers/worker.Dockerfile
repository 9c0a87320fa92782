# Rollout and trainer: vLLM and DeepSpeed. Build from the repository's root:
#   buildah bud --build-arg BASE_IMAGE=... -f workers/worker.Dockerfile -t rljob-worker .
# Any base with python3 3.11, its venv module and CA certificates serves as BASE_IMAGE.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG LOCK=workers/constraints/cpu.txt
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
# A package or two of the lock come as C source alone.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && { test -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
         || apt-get install -y --no-install-recommends python3-dev; }
RUN python3 -m venv /opt/uv && /opt/uv/bin/python -m pip install -q --disable-pip-version-check uv==0.13.8 \
    && python3 -m venv --without-pip /opt/rljob
WORKDIR /src
COPY ${LOCK} lock.txt
RUN /opt/uv/bin/uv pip sync -q --require-hashes --python /opt/rljob/bin/python lock.txt
# Our own code is a layer of its own: a change of it moves none of the packages.
RUN echo /opt/product > "$(/opt/rljob/bin/python -c 'import site; print(site.getsitepackages()[0])')/product.pth"

FROM build AS product
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY operator operator
COPY workers workers
RUN /opt/uv/bin/uv pip install -q --no-deps --python /opt/rljob/bin/python --target /opt/product .

FROM ${BASE_IMAGE}
# vLLM on CPU binds memory to NUMA nodes and fails at its start without this library.
RUN apt-get update && apt-get install -y --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/rljob /opt/rljob
COPY --from=product /opt/product /opt/product
# There is no compiler for torch's inductor in a pod.
ENV PATH=/opt/product/bin:/opt/rljob/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 TORCHDYNAMO_DISABLE=1
# A name for the uid: libraries ask for it.
RUN echo "rljob:x:65532:65532::/tmp:/usr/sbin/nologin" >> /etc/passwd
WORKDIR /
USER 65532:65532
CMD ["rljob-rollout", "--help"]
