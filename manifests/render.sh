#!/bin/sh
# Renders install.yaml from the chart with its default values: render.sh [HELM]. The e2e suite
# verifies that it is up to date.
set -eu
cd "$(dirname "$0")"
helm=${1:-helm}
{
    cat <<'NAMESPACE'
# Rendered from charts/groupage by manifests/render.sh; crds.yaml goes before it.
apiVersion: v1
kind: Namespace
metadata:
  name: groupage-system
  labels:
    app.kubernetes.io/name: groupage
    pod-security.kubernetes.io/enforce: restricted
NAMESPACE
    "$helm" template groupage ../charts/groupage --namespace groupage-system --set crds.enabled=false --skip-tests | grep -v '^# Source: '
} > install.yaml
