locals {
  # GKE keeps its own device plugin from nodes with this label. https://docs.cloud.google.com/kubernetes-engine/docs/how-to/gpu-operator
  without_gke_plugin = { "gke-no-default-nvidia-gpu-device-plugin" = "true" }
}

resource "google_container_node_pool" "gpu" {
  for_each = var.node_pools

  project           = var.project_id
  location          = var.location
  cluster           = var.cluster
  name              = each.key
  node_locations    = each.value.node_locations
  node_count        = each.value.node_count
  max_pods_per_node = each.value.max_pods_per_node

  dynamic "autoscaling" {
    for_each = each.value.node_count == null ? [each.value] : []

    content {
      min_node_count = autoscaling.value.min_count
      max_node_count = autoscaling.value.max_count
      # Where capacity is: GPUs are scarce, and spot ones go away by zone.
      location_policy = "ANY"
    }
  }

  dynamic "placement_policy" {
    for_each = each.value.placement_policy == null ? [] : [each.value.placement_policy]

    content {
      type = placement_policy.value
    }
  }

  management {
    auto_repair  = each.value.auto_repair
    auto_upgrade = each.value.auto_upgrade
  }

  # A new node beside the old one needs a second machine with GPUs, and such are rarely to be had at once.
  upgrade_settings {
    max_surge       = 0
    max_unavailable = 1
  }

  node_config {
    machine_type    = each.value.machine_type
    image_type      = each.value.image_type
    disk_size_gb    = each.value.disk_size_gb
    disk_type       = each.value.disk_type
    spot            = each.value.spot
    service_account = var.service_account
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    labels          = merge(each.value.labels, each.value.tessera ? local.without_gke_plugin : {})

    guest_accelerator {
      type               = each.value.accelerator_type
      count              = each.value.accelerator_count
      gpu_partition_size = each.value.gpu_partition_size

      gpu_driver_installation_config {
        gpu_driver_version = each.value.tessera ? "INSTALLATION_DISABLED" : coalesce(each.value.gpu_driver_version, "DEFAULT")
      }

      dynamic "gpu_sharing_config" {
        for_each = each.value.gpu_sharing_strategy == null ? [] : [each.value]

        content {
          gpu_sharing_strategy       = gpu_sharing_config.value.gpu_sharing_strategy
          max_shared_clients_per_gpu = gpu_sharing_config.value.max_shared_clients_per_gpu
        }
      }
    }

    dynamic "local_nvme_ssd_block_config" {
      for_each = each.value.local_nvme_ssd_count == 0 ? [] : [each.value.local_nvme_ssd_count]

      content {
        local_ssd_count = local_nvme_ssd_block_config.value
      }
    }

    dynamic "ephemeral_storage_local_ssd_config" {
      for_each = each.value.local_ssd_ephemeral_storage_count == 0 ? [] : [each.value.local_ssd_ephemeral_storage_count]

      content {
        local_ssd_count = ephemeral_storage_local_ssd_config.value
      }
    }

    dynamic "taint" {
      for_each = each.value.taints

      content {
        key    = taint.value.key
        value  = taint.value.value
        effect = taint.value.effect
      }
    }

    gvnic {
      enabled = true
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }

  lifecycle {
    # What the pool began with; a resize by hand changes it, and Terraform would make the pool anew.
    ignore_changes = [initial_node_count]
  }
}
