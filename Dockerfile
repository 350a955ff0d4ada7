# One image for both programs: `gpuscale run` (the default) and `gpuscale-exporter`.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY exporter exporter
COPY controller controller
RUN python -m venv /opt/gpuscale \
 && /opt/gpuscale/bin/pip install --no-cache-dir --disable-pip-version-check '.[kubelet,auth]'

FROM python:${PYTHON}-slim
COPY --from=build /opt/gpuscale /opt/gpuscale
ENV PATH=/opt/gpuscale/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8080 9836
ENTRYPOINT []
CMD ["gpuscale", "run"]
