# Headwater with everything a node of a cluster needs. Build at the root of the repository:
#   docker build -t headwater .
# The wheels of torch bring CUDA's libraries; the host brings the driver (NVIDIA container toolkit).
FROM python:3.11-slim

# A compiler for torch.compile; tini so that signals reach torchrun and nothing is left behind.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ tini \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/headwater
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
COPY recipes ./recipes
COPY clusters ./clusters
RUN pip install --no-cache-dir -c constraints.txt .

ENV PYTHONUNBUFFERED=1
WORKDIR /workspace
ENTRYPOINT ["tini", "-g", "--"]
CMD ["headwater", "--help"]
