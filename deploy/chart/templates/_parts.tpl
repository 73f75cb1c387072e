{{- define "tessera.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .tag }}
{{- end -}}
{{- end -}}

{{- define "tessera.container" -}}
image: {{ include "tessera.image" (dict "image" .Values.image "tag" (default .Chart.AppVersion .Values.image.tag)) | quote }}
imagePullPolicy: {{ quote .Values.image.pullPolicy }}
livenessProbe: {httpGet: {path: /healthz, port: health}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
readinessProbe: {httpGet: {path: /readyz, port: health}, periodSeconds: 5, timeoutSeconds: 5}
terminationMessagePolicy: FallbackToLogsOnError
{{- end -}}

{{- define "tessera.unprivileged" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}

{{- define "tessera.nonroot" -}}
{runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
{{- end -}}

{{- /* How pods that request an amount of a GPU find the scheduler: policy, webhook or none. */ -}}
{{- define "tessera.routing" -}}
{{- if ne .Values.admission.routing "auto" -}}
{{ .Values.admission.routing }}
{{- else if semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version -}}
policy
{{- else -}}
webhook
{{- end -}}
{{- end -}}

{{- /* Conditions that every node of the agent meets: not opted out, not paused by the GPU operator, not its own. */ -}}
{{- define "tessera.nodes" -}}
- {key: tessera.dev/agent, operator: NotIn, values: ["false"]}
- {key: nvidia.com/gpu.deploy.client, operator: NotIn, values: ["false", paused-for-mig-change, paused-for-driver-upgrade]}
{{- if eq .Values.nvidia.operator "none" }}
- {key: nvidia.com/gpu.deploy.device-plugin, operator: NotIn, values: ["true", paused-for-mig-change, paused-for-driver-upgrade]}
{{- else if eq .Values.nvidia.operator "beside" }}
- {key: nvidia.com/gpu.deploy.device-plugin, operator: In, values: ["false"]}
{{- end }}
{{- end -}}

{{- /* The port for Prometheus: arguments, mount, volume and annotation of a pod that has one. */ -}}
{{- define "tessera.metrics.arguments" -}}
- --metrics-port=9400
{{- if .Values.metrics.tls.secret }}
- --metrics-certificate=/run/tessera-metrics/tls.crt
- --metrics-key=/run/tessera-metrics/tls.key
{{- if .Values.metrics.tls.clientAuthority }}
- --metrics-client-authority=/run/tessera-metrics/ca.crt
{{- end }}
{{- end }}
{{- end -}}

{{- define "tessera.metrics.mount" -}}
- {name: metrics-certificate, mountPath: /run/tessera-metrics, readOnly: true}
{{- end -}}

{{- define "tessera.metrics.volume" -}}
- {name: metrics-certificate, secret: {secretName: {{ quote .Values.metrics.tls.secret }}, defaultMode: 0440}}
{{- end -}}
