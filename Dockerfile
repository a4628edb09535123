# Two images of one source: `light` serves the stages without a model and the tools, `torch` the rollout worker and the learner.
#
#   docker build --target light --tag gagar-light:0.1.0 .
#   docker build --target torch --tag gagar-torch:0.1.0 .
#
# Packages come by the hashes in requirements/, from wherever pip is told; a pip.conf of your own goes in as a secret and stays
# outside of the image: --secret id=pip_conf,src=/etc/pip.conf. So do authorities that pip is to trust: cert = /run/secrets/ca_bundle
# in that file, and --secret id=ca_bundle,src=/etc/ssl/certs/ca-certificates.crt. The pins carry linux/amd64 and linux/arm64, and so do the base images:
# docker buildx build --platform linux/amd64,linux/arm64 --build-arg SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) ...
ARG PYTHON_IMAGE=python:3.13-slim-trixie

FROM ${PYTHON_IMAGE} AS python

FROM python AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_COMPILE=1
COPY requirements/build.txt /requirements/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip_conf,target=/etc/pip.conf --mount=type=secret,id=ca_bundle \
    python -m venv /opt/build && /opt/build/bin/pip install --require-hashes -r /requirements/build.txt

# The source, apart from the packages: a change of it makes a small layer anew.
FROM builder AS source
ARG SOURCE_DATE_EPOCH=0
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY gagar gagar
COPY topology topology
COPY producers producers
COPY consumers consumers
RUN /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels . \
    && /opt/build/bin/pip install --no-deps --no-index --target /opt/source /wheels/*.whl \
    && rm -rf /opt/source/bin \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/source

FROM builder AS light-packages
COPY requirements/light.txt /requirements/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip_conf,target=/etc/pip.conf --mount=type=secret,id=ca_bundle \
    python -m venv --without-pip /opt/gagar \
    && /opt/build/bin/pip --python /opt/gagar install --require-hashes -r /requirements/light.txt \
    && echo /opt/source > "$(/opt/gagar/bin/python -c 'import site; print(site.getsitepackages()[0])')/source.pth" \
    && python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/gagar

FROM builder AS torch-packages
COPY requirements/torch.txt /requirements/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip_conf,target=/etc/pip.conf --mount=type=secret,id=ca_bundle \
    python -m venv --without-pip /opt/gagar \
    && /opt/build/bin/pip --python /opt/gagar install --require-hashes -r /requirements/torch.txt \
    && echo /opt/source > "$(/opt/gagar/bin/python -c 'import site; print(site.getsitepackages()[0])')/source.pth" \
    && python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/gagar

FROM python AS runtime
ARG PYTHON_IMAGE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gagar" \
      org.opencontainers.image.description="Reinforcement learning for code agents as a stream over Apache Kafka" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
# A volume that is mounted at run.dir takes the owner from here.
RUN groupadd --gid 10001 gagar \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin gagar \
    && install -d -o 10001 -g 10001 /srv/gagar /srv/gagar/.gagar
ENV PATH=/opt/gagar/bin:$PATH HOME=/tmp LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /srv/gagar
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=2 CMD ["python", "-P", "-m", "gagar.cli.main", "health"]
ENTRYPOINT ["python", "-P", "-m", "gagar.cli.main"]
CMD ["--help"]

FROM runtime AS torch
COPY --from=torch-packages /opt/gagar /opt/gagar
COPY --from=source /opt/source /opt/source

FROM runtime AS light
COPY --from=light-packages /opt/gagar /opt/gagar
COPY --from=source /opt/source /opt/source
