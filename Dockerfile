# The trainer's image: what every host of a workload without a --command runs.
#
#   docker build --build-arg BASE_IMAGE=python:3.11-slim -t xpk-trainer .
#   docker build --build-arg JAX_EXTRA=tpu -t xpk-trainer:tpu .
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}

ARG JAX_EXTRA=
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONPATH=/app

WORKDIR /app
COPY constraints.txt pyproject.toml ./
# The trainer's dependencies, those for tokenizers, buckets and Ray, from the one place that names them; the tool itself is not needed.
# What a distribution has installed cannot be uninstalled by pip: it stays, and ours is found first.
RUN python -c "import tomllib; extras = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; print('\n'.join(extras['trainer'] + extras['tokenizer'] + extras['gcs'] + extras['ray']))" > trainer.txt \
    && python -m pip install --ignore-installed --constraint constraints.txt --requirement trainer.txt pyyaml \
    && if [ -n "${JAX_EXTRA}" ]; then python -m pip install --constraint constraints.txt "jax[${JAX_EXTRA}]"; fi
COPY workloads/trainer ./trainer
COPY workloads/xpk_ray ./xpk_ray

# Unprivileged, as the manifest asks.
RUN useradd --uid 10001 --create-home host 2>/dev/null || adduser -D -u 10001 host
USER 10001
CMD ["python", "-m", "trainer", "train"]
