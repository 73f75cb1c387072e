mock_provider "google" {}

variables {
  project_id = "example"
  location   = "us-central1"
  cluster    = "example"
}

run "tessera_has_the_gpus" {
  command = plan

  variables {
    node_pools = {
      h100 = {
        machine_type         = "a3-highgpu-8g"
        accelerator_type     = "nvidia-h100-80gb"
        accelerator_count    = 8
        local_nvme_ssd_count = 16
        spot                 = true
        max_pods_per_node    = 128
        labels               = { workload = "inference" }
        taints               = [{ key = "nvidia.com/gpu", value = "present", effect = "NO_SCHEDULE" }]
      }
    }
  }

  assert {
    condition = google_container_node_pool.gpu["h100"].node_config[0].labels == tomap({
      "gke-no-default-nvidia-gpu-device-plugin" = "true", workload = "inference"
    })
    error_message = "GKE's device plugin must stay away from the nodes, and the pool's own labels stay."
  }

  assert {
    condition     = google_container_node_pool.gpu["h100"].node_config[0].guest_accelerator[0].gpu_driver_installation_config[0].gpu_driver_version == "INSTALLATION_DISABLED"
    error_message = "GKE installs the driver with its device plugin, which is off."
  }

  assert {
    condition = alltrue([
      google_container_node_pool.gpu["h100"].node_config[0].guest_accelerator[0].type == "nvidia-h100-80gb",
      google_container_node_pool.gpu["h100"].node_config[0].guest_accelerator[0].count == 8,
      length(google_container_node_pool.gpu["h100"].node_config[0].guest_accelerator[0].gpu_sharing_config) == 0,
      google_container_node_pool.gpu["h100"].node_config[0].local_nvme_ssd_block_config[0].local_ssd_count == 16,
      length(google_container_node_pool.gpu["h100"].node_config[0].ephemeral_storage_local_ssd_config) == 0,
      google_container_node_pool.gpu["h100"].node_config[0].spot,
      google_container_node_pool.gpu["h100"].node_config[0].taint[0].key == "nvidia.com/gpu",
      google_container_node_pool.gpu["h100"].node_config[0].taint[0].effect == "NO_SCHEDULE",
      google_container_node_pool.gpu["h100"].max_pods_per_node == 128,
      google_container_node_pool.gpu["h100"].autoscaling[0].min_node_count == 0,
      google_container_node_pool.gpu["h100"].autoscaling[0].max_node_count == 1,
    ])
    error_message = "The pool is not as declared."
  }

  assert {
    condition     = output.tessera_node_pools == tolist(["h100"])
    error_message = "Pools of Tessera are listed."
  }
}

run "gke_has_the_gpus" {
  command = plan

  variables {
    node_pools = {
      mig = {
        tessera                    = false
        machine_type               = "a3-highgpu-8g"
        accelerator_type           = "nvidia-h100-80gb"
        accelerator_count          = 8
        gpu_partition_size         = "1g.10gb"
        gpu_sharing_strategy       = "TIME_SHARING"
        max_shared_clients_per_gpu = 3
        gpu_driver_version         = "LATEST"
        node_count                 = 2

        local_ssd_ephemeral_storage_count = 16
      }
      mps = {
        tessera                    = false
        machine_type               = "g2-standard-12"
        accelerator_type           = "nvidia-l4"
        accelerator_count          = 1
        gpu_sharing_strategy       = "MPS"
        max_shared_clients_per_gpu = 8
      }
    }
  }

  assert {
    condition = alltrue([
      google_container_node_pool.gpu["mig"].node_config[0].guest_accelerator[0].gpu_partition_size == "1g.10gb",
      google_container_node_pool.gpu["mig"].node_config[0].guest_accelerator[0].gpu_sharing_config[0].gpu_sharing_strategy == "TIME_SHARING",
      google_container_node_pool.gpu["mig"].node_config[0].guest_accelerator[0].gpu_sharing_config[0].max_shared_clients_per_gpu == 3,
      google_container_node_pool.gpu["mig"].node_config[0].guest_accelerator[0].gpu_driver_installation_config[0].gpu_driver_version == "LATEST",
      google_container_node_pool.gpu["mig"].node_config[0].ephemeral_storage_local_ssd_config[0].local_ssd_count == 16,
      length(google_container_node_pool.gpu["mig"].node_config[0].local_nvme_ssd_block_config) == 0,
      google_container_node_pool.gpu["mig"].node_count == 2,
      length(google_container_node_pool.gpu["mig"].autoscaling) == 0,
      google_container_node_pool.gpu["mps"].node_config[0].guest_accelerator[0].gpu_sharing_config[0].gpu_sharing_strategy == "MPS",
      google_container_node_pool.gpu["mps"].node_config[0].guest_accelerator[0].gpu_driver_installation_config[0].gpu_driver_version == "DEFAULT",
    ])
    error_message = "The pools are not as declared."
  }

  assert {
    condition     = !can(google_container_node_pool.gpu["mps"].node_config[0].labels["gke-no-default-nvidia-gpu-device-plugin"])
    error_message = "Where GKE has the GPUs its device plugin must run."
  }

  assert {
    condition     = length(output.tessera_node_pools) == 0
    error_message = "These pools are GKE's."
  }
}
