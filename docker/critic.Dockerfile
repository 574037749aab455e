# The critic and reader: Triton's vLLM backend, with the critic's configuration and the probe. Weights are mounted.
#   docker build -f docker/critic.Dockerfile -t canopy/critic:0.1.0 .
ARG TRITON_VLLM_IMAGE=nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3

FROM ${TRITON_VLLM_IMAGE} AS environments
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY requirements requirements
# An environment of its own: vLLM's packages stay as the image has them.
RUN python3 -m venv --without-pip /opt/canopy/probe \
    && python3 -m pip --python /opt/canopy/probe/bin/python install --requirement requirements/probe.txt
COPY pyproject.toml README.md LICENSE ./
COPY python_backend python_backend
COPY export export
COPY milvus milvus
COPY client client
COPY local local
COPY training training
RUN python3 -m pip --python /opt/canopy/probe/bin/python install --no-deps .

# vLLM compiles kernels when it starts, so this image keeps the compiler that its base brings; nothing is added to it.
FROM ${TRITON_VLLM_IMAGE}
RUN groupadd --gid 10001 canopy \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin canopy
COPY --from=environments /opt/canopy /opt/canopy
COPY model_repository/critic/config.pbtxt /opt/canopy/model_repository/critic/config.pbtxt
COPY model_repository/critic/1/model.json /opt/canopy/model_repository/critic/1/model.json
ENV PYTHONDONTWRITEBYTECODE=1 \
    HF_HUB_OFFLINE=1 \
    TRANSFORMERS_OFFLINE=1 \
    VLLM_NO_USAGE_STATS=1 \
    CANOPY_CRITIC_URL=localhost:8001 \
    HOME=/tmp
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=60s --timeout=40s --start-period=600s --retries=3 \
    CMD ["/opt/canopy/probe/bin/python", "-m", "canopy_client.cli.probe", "--no-evidence", "--critic", "--timeout-s", "30"]
ENTRYPOINT ["tritonserver"]
CMD ["--model-repository=/opt/canopy/model_repository", "--model-control-mode=explicit", "--load-model=critic", "--disable-auto-complete-config", "--strict-readiness=true", "--exit-on-error=true", "--metrics-config=summary_latencies=true"]
