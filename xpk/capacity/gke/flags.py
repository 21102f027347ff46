"""Command-line flags of the GKE provider."""

from __future__ import annotations

# Flags specific to Google Cloud: with any of them, gke is the provider.
CLOUD_FLAGS = (
    "--project", "--zone", "--region", "--on-demand", "--spot", "--reservation", "--flex", "--queued-provisioning",
    "--sub-slicing",
    "--gke-version", "--release-channel", "--default-pool-cpu-machine-type", "--default-pool-cpu-num-nodes",
    "--host-maintenance-interval", "--private", "--authorized-networks", "--enable-private-endpoint",
    "--private-endpoint-subnetwork", "--enable-master-global-access", "--network", "--subnetwork",
    "--enable-workload-identity", "--disable-workload-identity", "--node-scopes",
    "--enable-gcsfuse-csi-driver", "--enable-gcpfilestore-csi-driver",
    "--enable-parallelstore-csi-driver", "--enable-pd-csi-driver", "--enable-lustre-csi-driver",
    "--enable-legacy-lustre-port", "--enable-autoprovisioning", "--autoprovisioning-min-chips",
    "--autoprovisioning-max-chips", "--autoprovisioning-max-cpu", "--autoprovisioning-max-memory",
    "--custom-cluster-arguments", "--custom-nodepool-arguments", "--custom-tpu-nodepool-arguments",
    "--ignore-nodepool-creation-errors", "--roll-back", "--at-once", "--max-cost", "--prices", "--max-pods-per-node",
    "--output-root", "--timeout",
)  # fmt: skip
