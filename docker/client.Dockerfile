# The canopy command for jobs: indexing, questions, the probe. Talks to the servers and to Milvus.
#   docker build -f docker/client.Dockerfile -t canopy/client:0.1.0 .
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements requirements
RUN python -m venv --without-pip /opt/canopy/client \
    && python -m pip --python /opt/canopy/client/bin/python install --requirement requirements/jobs.txt
COPY pyproject.toml README.md LICENSE ./
COPY python_backend python_backend
COPY export export
COPY milvus milvus
COPY client client
COPY local local
COPY training training
RUN python -m pip --python /opt/canopy/client/bin/python install --no-deps .

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 canopy \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin canopy
COPY --from=build /opt/canopy /opt/canopy
ENV PATH=/opt/canopy/client/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HUB_OFFLINE=1 \
    HOME=/tmp \
    CANOPY_HOME=/tmp/canopy
USER 10001:10001
WORKDIR /tmp
# A job ends by itself. This asks whether the server that it needs answers.
HEALTHCHECK --interval=60s --timeout=20s --retries=3 \
    CMD ["python", "-m", "canopy_client.cli.probe", "--busy-passes"]
ENTRYPOINT ["canopy"]
CMD ["--help"]
