# The evidence server: Triton, the project's models and an exported encoder.
#   docker build -f docker/evidence.Dockerfile -t canopy/evidence:0.1.0 .
# Pin the bases by digest, in a release: --build-arg TRITON_IMAGE=nvcr.io/nvidia/tritonserver@sha256:...
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.07-py3
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm

# The encoder as a graph, with its gates: needs torch, which the server does not.
FROM ${PYTHON_IMAGE} AS export
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 HF_HUB_OFFLINE=1
# embedded or onnx; plans of TensorRT are built from the graphs of onnx, see plans.Dockerfile.
ARG PROFILE=onnx
WORKDIR /src
COPY requirements requirements
RUN pip install --requirement requirements/client.txt
COPY . .
RUN pip install --no-deps . \
    && canopy export --profile "${PROFILE}" --repository model_repository

# Environments: the models' and the probe's, each from its lock.
FROM ${TRITON_IMAGE} AS environments
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements requirements
# Without pip of their own: Ubuntu's Python can make such ones without further packages, and servers have no use for it.
RUN python3 -m venv --without-pip /opt/canopy/server \
    && python3 -m pip --python /opt/canopy/server/bin/python install --requirement requirements/server.txt \
    && python3 -m venv --without-pip /opt/canopy/probe \
    && python3 -m pip --python /opt/canopy/probe/bin/python install --requirement requirements/probe.txt
COPY pyproject.toml README.md LICENSE ./
COPY python_backend python_backend
COPY export export
COPY milvus milvus
COPY client client
COPY local local
COPY training training
RUN python3 -m pip --python /opt/canopy/server/bin/python install --no-deps . \
    && python3 -m pip --python /opt/canopy/probe/bin/python install --no-deps .

FROM ${TRITON_IMAGE}
# Compilers are of no use to this server, and of much to whoever breaks into it. Only the programs go: packages that
# depend on theirs stay as they are.
RUN find /usr/bin /usr/local/bin -regextype posix-extended \
        -regex '.*/(([a-z0-9_]+-linux-gnu-)?(gcc|g\+\+|cpp|cc|c\+\+|clang|clang\+\+)(-[0-9.]+)?|make|cmake|nvcc)' -delete \
    && ! command -v gcc && ! command -v cc && ! command -v clang && ! command -v make \
    && groupadd --gid 10001 canopy \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin canopy
COPY --from=environments /opt/canopy /opt/canopy
COPY --from=export /src/model_repository /opt/canopy/model_repository
# Activated: Triton's Python models import what is installed here.
ENV VIRTUAL_ENV=/opt/canopy/server \
    PATH=/opt/canopy/server/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HUB_OFFLINE=1 \
    HOME=/tmp
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=30s --timeout=20s --start-period=180s --retries=3 \
    CMD ["/opt/canopy/probe/bin/python", "-m", "canopy_client.cli.probe"]
ENTRYPOINT ["tritonserver"]
CMD ["--model-repository=/opt/canopy/model_repository", "--model-control-mode=explicit", "--load-model=compress", "--load-model=compress_indexed", "--load-model=index", "--load-model=embed_query", "--model-config-name=onnx", "--disable-auto-complete-config", "--strict-readiness=true", "--exit-on-error=true", "--cache-config=local,size=67108864", "--metrics-config=summary_latencies=true"]
