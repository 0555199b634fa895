"""Kubernetes: manifests of jobs and deployments, and jobs through its API."""

from __future__ import annotations
