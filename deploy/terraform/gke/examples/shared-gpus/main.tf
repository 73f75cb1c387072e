# The pools that people share GPUs with on GKE, Tessera's first. Delete those that you do not need: each may start machines with GPUs.

variable "project_id" {
  description = "Project of the cluster."
  type        = string
}

variable "location" {
  description = "Region or zone of the cluster."
  type        = string
  default     = "us-central1"
}

variable "cluster" {
  description = "Name of the cluster."
  type        = string
}

variable "zone" {
  description = "Zone that has the GPUs."
  type        = string
  default     = "us-central1-a"
}

provider "google" {
  project = var.project_id
}

module "gpus" {
  source = "../.."

  project_id = var.project_id
  location   = var.location
  cluster    = var.cluster

  node_pools = {
    # Eight H100s whose partitions Tessera makes as pods need them; the sixteen local SSDs of the machine as block devices.
    tessera-h100 = {
      machine_type         = "a3-highgpu-8g"
      accelerator_type     = "nvidia-h100-80gb"
      accelerator_count    = 8
      node_locations       = [var.zone]
      local_nvme_ssd_count = 16
      spot                 = true
      max_count            = 2
      max_pods_per_node    = 128
      taints               = [{ key = "nvidia.com/gpu", value = "present", effect = "NO_SCHEDULE" }]
      labels               = { workload = "inference" }
    }

    tessera-l4 = {
      machine_type      = "g2-standard-24"
      accelerator_type  = "nvidia-l4"
      accelerator_count = 2
      node_locations    = [var.zone]
      max_count         = 4
    }

    # GKE's own ways, for what stays with them: seven equal partitions of each H100, ...
    gke-h100-mig = {
      tessera              = false
      machine_type         = "a3-highgpu-8g"
      accelerator_type     = "nvidia-h100-80gb"
      accelerator_count    = 8
      gpu_partition_size   = "1g.10gb"
      gpu_driver_version   = "LATEST"
      node_locations       = [var.zone]
      local_nvme_ssd_count = 16
      spot                 = true
      max_pods_per_node    = 128
      taints               = [{ key = "nvidia.com/gpu", value = "present", effect = "NO_SCHEDULE" }]
    }

    # ... each partition shared by turns, ...
    gke-h100-mig-shared = {
      tessera                    = false
      machine_type               = "a3-highgpu-1g"
      accelerator_type           = "nvidia-h100-80gb"
      accelerator_count          = 1
      gpu_partition_size         = "3g.40gb"
      gpu_sharing_strategy       = "TIME_SHARING"
      max_shared_clients_per_gpu = 4
      node_locations             = [var.zone]
      local_nvme_ssd_count       = 2
      spot                       = true
    }

    # ... whole GPUs shared by turns, ...
    gke-t4-time-sharing = {
      tessera                    = false
      machine_type               = "n1-standard-8"
      accelerator_type           = "nvidia-tesla-t4"
      accelerator_count          = 1
      gpu_sharing_strategy       = "TIME_SHARING"
      max_shared_clients_per_gpu = 4
      node_locations             = [var.zone]
      max_count                  = 4
    }

    # ... or by MPS.
    gke-l4-mps = {
      tessera                    = false
      machine_type               = "g2-standard-12"
      accelerator_type           = "nvidia-l4"
      accelerator_count          = 1
      gpu_sharing_strategy       = "MPS"
      max_shared_clients_per_gpu = 8
      node_locations             = [var.zone]
      max_count                  = 4
    }
  }
}

output "tessera_node_pools" {
  description = "Pools whose GPUs Tessera has."
  value       = module.gpus.tessera_node_pools
}
