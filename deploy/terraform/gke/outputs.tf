output "node_pools" {
  description = "Ids of the node pools by name."
  value       = { for name, pool in google_container_node_pool.gpu : name => pool.id }
}

output "tessera_node_pools" {
  description = "Names of the pools whose GPUs Tessera has; their nodes need Google's driver installer, see the README."
  value       = sort([for name, pool in var.node_pools : name if pool.tessera])
}
