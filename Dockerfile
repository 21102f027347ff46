# The trainer's image, for hosts of workloads without a --command.
#
#   docker build -t xpk-trainer .
#   docker build --build-arg JAX_EXTRA=tpu -t xpk-trainer:tpu .
# By digest, because a tag moves. `docker buildx imagetools inspect python:3.11-slim` shows the newest one.
ARG BASE_IMAGE=python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7
FROM ${BASE_IMAGE}

ARG JAX_EXTRA=
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONPATH=/app

WORKDIR /app
COPY requirements/image.txt requirements/tpu.txt ./
# Install only wheels of known SHA-256 (`make lock`). pip cannot uninstall packages of the distribution: they stay, and
# ours are found first. pip would compile them into files that contain the time of the installation.
RUN python -m pip install --no-compile --ignore-installed --require-hashes --only-binary :all: --requirement image.txt \
    && if [ "${JAX_EXTRA}" = tpu ]; then python -m pip install --no-compile --require-hashes --only-binary :all: --no-deps --requirement tpu.txt; \
    elif [ -n "${JAX_EXTRA}" ]; then echo "invalid JAX_EXTRA '${JAX_EXTRA}': must be tpu" >&2; exit 1; fi
COPY workloads/trainer ./trainer
COPY workloads/xpk_shared ./xpk_shared
COPY workloads/xpk_ray ./xpk_ray
# Hosts cannot write here: each start of each host would compile these modules. Files with a hash of the source instead of
# its time have the same bytes in each build. Some packages have files that are not for this version of Python.
RUN python -m compileall -q --invalidation-mode unchecked-hash trainer xpk_shared xpk_ray \
    && { python -m compileall -qq --invalidation-mode unchecked-hash "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true; }

# Unprivileged, as the manifest requires.
# `useradd` records today's date, or that of a build that others repeat (docs/releasing.md).
ARG SOURCE_DATE_EPOCH
RUN useradd --uid 10001 --create-home host 2>/dev/null || adduser -D -u 10001 host
USER 10001
CMD ["python", "-m", "trainer", "train"]
