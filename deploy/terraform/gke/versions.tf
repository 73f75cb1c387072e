terraform {
  required_version = ">= 1.7" # the tests need mock providers: Terraform 1.7, OpenTofu 1.8

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.0"
    }
  }
}
