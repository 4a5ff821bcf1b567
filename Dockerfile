# The server, on port 8000:
#     docker build -t streamseg .
#     docker run -p 8000:8000 -e STREAMSEG_TOKEN=secret streamseg
# With your own weights: docker run -v "$PWD/run:/run-1:ro" … streamseg /run-1/weights.safetensors
# With a GPU: docker build --build-arg TORCH=cu130 -t streamseg:gpu . && docker run --gpus all …
# Kernels are compiled by the first container that has the GPU; a volume keeps them: -v kernels:/home/streamseg/.triton
# or compile them ahead into that volume: docker run --gpus all -v … --entrypoint streamseg streamseg:gpu warm --size 720x1280
FROM python:3.11-slim-bookworm

# which build of torch: cpu, or a version of CUDA such as cu130
ARG TORCH=cpu
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

# Triton compiles its launchers with a C compiler; Debian keeps one version of it
# hadolint ignore=DL3008
RUN if [ "$TORCH" != cpu ]; then \
        apt-get update -q && apt-get install -qy --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi

WORKDIR /build
COPY . .
RUN pip install --no-cache-dir --extra-index-url "https://download.pytorch.org/whl/$TORCH" -c constraints.txt '.[serve,hub]' \
    && rm -rf /build/*

RUN useradd --create-home --uid 1000 streamseg
USER 1000
WORKDIR /home/streamseg
# a new volume gets the owner of the folder that it is mounted over
RUN mkdir .triton .cache

EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["streamseg", "serve", "--host", "0.0.0.0"]
