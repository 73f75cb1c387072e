variable "project_id" {
  description = "Project of the cluster."
  type        = string
}

variable "location" {
  description = "Region or zone of the cluster."
  type        = string
}

variable "cluster" {
  description = "Name of an existing GKE Standard cluster. Autopilot has no node pools of yours, and no privileged pods."
  type        = string
}

variable "service_account" {
  description = "E-mail of the nodes' service account; null for the project's default one."
  type        = string
  default     = null
}

variable "node_pools" {
  description = "GPU node pools by name. The README explains the fields, which are called as in terraform-google-modules/kubernetes-engine."
  type = map(object({
    tessera                           = optional(bool, true)
    machine_type                      = string
    accelerator_type                  = string
    accelerator_count                 = number
    node_locations                    = optional(list(string))
    node_count                        = optional(number)
    min_count                         = optional(number, 0)
    max_count                         = optional(number, 1)
    gpu_driver_version                = optional(string)
    gpu_partition_size                = optional(string)
    gpu_sharing_strategy              = optional(string)
    max_shared_clients_per_gpu        = optional(number)
    local_nvme_ssd_count              = optional(number, 0)
    local_ssd_ephemeral_storage_count = optional(number, 0)
    spot                              = optional(bool, false)
    max_pods_per_node                 = optional(number, 110)
    image_type                        = optional(string, "COS_CONTAINERD")
    disk_size_gb                      = optional(number, 200)
    disk_type                         = optional(string)
    placement_policy                  = optional(string)
    auto_repair                       = optional(bool, true)
    auto_upgrade                      = optional(bool, true)
    labels                            = optional(map(string), {})
    taints                            = optional(list(object({ key = string, value = string, effect = string })), [])
  }))

  validation {
    condition     = alltrue([for name in keys(var.node_pools) : can(regex("^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$", name))])
    error_message = "A node pool's name has at most 40 lower-case letters, digits and hyphens, and begins with a letter."
  }

  validation {
    condition = alltrue([
      for pool in values(var.node_pools) : !pool.tessera || alltrue([
        pool.gpu_partition_size == null, pool.gpu_sharing_strategy == null, pool.gpu_driver_version == null,
      ])
    ])
    error_message = "With tessera = true, gpu_partition_size, gpu_sharing_strategy and gpu_driver_version must be left out: Tessera partitions and shares the GPUs, and GKE would do so too. Leave them out, or set tessera = false."
  }

  validation {
    condition     = alltrue([for pool in values(var.node_pools) : contains([1, 2, 4, 8, 16], pool.accelerator_count)])
    error_message = "accelerator_count is the number of GPUs of the machine type: 1, 2, 4, 8 or 16."
  }

  validation {
    condition = alltrue([
      for pool in values(var.node_pools) :
      pool.gpu_partition_size == null || can(regex("^[1-7]g\\.[1-9][0-9]{0,2}gb([+-][a-z.]+)?$", pool.gpu_partition_size))
    ])
    error_message = "gpu_partition_size is a MIG profile, such as 1g.10gb on an H100 80 GB; `tessera profiles H100-80GB` lists them."
  }

  validation {
    condition = alltrue([
      for pool in values(var.node_pools) :
      contains(["TIME_SHARING", "MPS"], pool.gpu_sharing_strategy) if pool.gpu_sharing_strategy != null
    ])
    error_message = "gpu_sharing_strategy is TIME_SHARING or MPS."
  }

  validation {
    condition = alltrue([
      for pool in values(var.node_pools) : (pool.gpu_sharing_strategy == null) == (pool.max_shared_clients_per_gpu == null)
    ])
    error_message = "gpu_sharing_strategy and max_shared_clients_per_gpu belong together: give both or neither."
  }

  validation {
    condition = alltrue([
      for pool in values(var.node_pools) :
      pool.max_shared_clients_per_gpu >= 2 && pool.max_shared_clients_per_gpu <= 48 if pool.max_shared_clients_per_gpu != null
    ])
    error_message = "max_shared_clients_per_gpu is from 2 to 48."
  }

  validation {
    condition = alltrue([
      for pool in values(var.node_pools) :
      contains(["DEFAULT", "LATEST"], pool.gpu_driver_version) if pool.gpu_driver_version != null
    ])
    error_message = "gpu_driver_version is DEFAULT or LATEST; null is DEFAULT, or no installation with tessera = true."
  }

  validation {
    condition     = alltrue([for pool in values(var.node_pools) : pool.min_count >= 0 && pool.min_count <= pool.max_count])
    error_message = "min_count is at least 0 and at most max_count."
  }

  validation {
    condition     = alltrue([for pool in values(var.node_pools) : pool.max_pods_per_node >= 8 && pool.max_pods_per_node <= 256])
    error_message = "max_pods_per_node is from 8 to 256."
  }

  validation {
    condition = alltrue(flatten([
      for pool in values(var.node_pools) : [
        for taint in pool.taints : contains(["NO_SCHEDULE", "PREFER_NO_SCHEDULE", "NO_EXECUTE"], taint.effect)
      ]
    ]))
    error_message = "A taint's effect is NO_SCHEDULE, PREFER_NO_SCHEDULE or NO_EXECUTE, as Google's API has them."
  }
}
