# Builds TensorRT plans on the GPU that will serve them (canopy_export.tensorrt.build), as an init container or by hand.
#   docker build -f docker/plans.Dockerfile -t canopy/plans:0.1.0 .
# The release is the server's: plans of another TensorRT do not load.
ARG TENSORRT_IMAGE=nvcr.io/nvidia/tensorrt:26.07-py3

FROM ${TENSORRT_IMAGE} AS environments
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements requirements
# The image's own packages stay visible: its TensorRT bindings are what this is for.
RUN python3 -m venv --without-pip --system-site-packages /opt/canopy/plans \
    && python3 -m pip --python /opt/canopy/plans/bin/python install --requirement requirements/probe.txt
COPY pyproject.toml README.md LICENSE ./
COPY python_backend python_backend
COPY export export
COPY milvus milvus
COPY client client
COPY local local
COPY training training
RUN python3 -m pip --python /opt/canopy/plans/bin/python install --no-deps .

FROM ${TENSORRT_IMAGE}
RUN groupadd --gid 10001 canopy \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin canopy
COPY --from=environments /opt/canopy /opt/canopy
ENV PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
WORKDIR /tmp
# It builds and ends.
HEALTHCHECK NONE
ENTRYPOINT ["/opt/canopy/plans/bin/python", "-m", "canopy_export.tensorrt.build"]
CMD ["--help"]
