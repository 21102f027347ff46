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
# The trainer's dependencies alone, from the one place that names them; the tool itself is not needed here.
RUN python -c "import tomllib; print('\n'.join(tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['trainer']))" > trainer.txt \
    && python -m pip install --constraint constraints.txt --requirement trainer.txt pyyaml \
    && if [ -n "${JAX_EXTRA}" ]; then python -m pip install --constraint constraints.txt "jax[${JAX_EXTRA}]"; fi
COPY workloads/trainer ./trainer

# Unprivileged, as the manifest asks.
RUN useradd --uid 10001 --create-home host 2>/dev/null || adduser -D -u 10001 host
USER 10001
CMD ["python", "-m", "trainer", "train"]
