"""Object kinds that xpk reads and writes, and their API paths."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: its name, its API version, its plural in the URL, and whether it is namespaced."""

    name: str
    api_version: str
    plural: str
    namespaced: bool = True


_JOBSET = "jobset.x-k8s.io/v1alpha2"
_KUEUE = "kueue.x-k8s.io/v1beta2"
_RBAC = "rbac.authorization.k8s.io/v1"
_GKE_NETWORKS = "networking.gke.io/v1"
_ADMISSION = "admissionregistration.k8s.io/v1"

KINDS = {
    kind.name: kind
    for kind in (
        Kind("JobSet", _JOBSET, "jobsets"),
        Kind("Job", "batch/v1", "jobs"),
        Kind("Pod", "v1", "pods"),
        Kind("Event", "v1", "events"),
        Kind("Node", "v1", "nodes", namespaced=False),
        Kind("Workload", _KUEUE, "workloads"),
        Kind("LocalQueue", _KUEUE, "localqueues"),
        Kind("ClusterQueue", _KUEUE, "clusterqueues", namespaced=False),
        Kind("ResourceFlavor", _KUEUE, "resourceflavors", namespaced=False),
        Kind("WorkloadPriorityClass", _KUEUE, "workloadpriorityclasses", namespaced=False),
    )
}

# Kinds for cluster setup, controllers, the image cache and mounts: on a real API server only.
INSTALLED_KINDS = {
    kind.name: kind
    for kind in (
        Kind("SelfSubjectAccessReview", "authorization.k8s.io/v1", "selfsubjectaccessreviews", namespaced=False),
        Kind("Lease", "coordination.k8s.io/v1", "leases"),
        Kind("PriorityClass", "scheduling.k8s.io/v1", "priorityclasses", namespaced=False),
        Kind("Topology", _KUEUE, "topologies", namespaced=False),
        Kind("Cohort", _KUEUE, "cohorts", namespaced=False),
        Kind("AdmissionCheck", _KUEUE, "admissionchecks", namespaced=False),
        Kind("ProvisioningRequestConfig", _KUEUE, "provisioningrequestconfigs", namespaced=False),
        Kind("Namespace", "v1", "namespaces", namespaced=False),
        Kind("ServiceAccount", "v1", "serviceaccounts"),
        Kind("ConfigMap", "v1", "configmaps"),
        Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
        Kind("Secret", "v1", "secrets"),
        Kind("Service", "v1", "services"),
        Kind("PersistentVolumeClaim", "v1", "persistentvolumeclaims"),
        Kind("PersistentVolume", "v1", "persistentvolumes", namespaced=False),
        Kind("StorageClass", "storage.k8s.io/v1", "storageclasses", namespaced=False),
        Kind("CSIDriver", "storage.k8s.io/v1", "csidrivers", namespaced=False),
        Kind("Deployment", "apps/v1", "deployments"),
        Kind("DaemonSet", "apps/v1", "daemonsets"),
        Kind("Role", _RBAC, "roles"),
        Kind("RoleBinding", _RBAC, "rolebindings"),
        Kind("ClusterRole", _RBAC, "clusterroles", namespaced=False),
        Kind("ClusterRoleBinding", _RBAC, "clusterrolebindings", namespaced=False),
        Kind("CustomResourceDefinition", "apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False),
        Kind("APIService", "apiregistration.k8s.io/v1", "apiservices", namespaced=False),
        Kind("Network", _GKE_NETWORKS, "networks", namespaced=False),
        Kind("GKENetworkParamSet", _GKE_NETWORKS, "gkenetworkparamsets", namespaced=False),
        Kind("Slice", "accelerator.gke.io/v1beta1", "slices", namespaced=False),
        Kind("MutatingWebhookConfiguration", _ADMISSION, "mutatingwebhookconfigurations", namespaced=False),
        Kind("ValidatingAdmissionPolicy", _ADMISSION, "validatingadmissionpolicies", namespaced=False),
        Kind("ValidatingAdmissionPolicyBinding", _ADMISSION, "validatingadmissionpolicybindings", namespaced=False),
        Kind("ValidatingWebhookConfiguration", _ADMISSION, "validatingwebhookconfigurations", namespaced=False),
    )
}
EVERY_KIND = KINDS | INSTALLED_KINDS
