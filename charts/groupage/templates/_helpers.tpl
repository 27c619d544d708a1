{{- define "groupage.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "groupage.labels" -}}
app.kubernetes.io/name: groupage
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "groupage.selector" -}}
app.kubernetes.io/name: groupage
groupage.dev/component: controller
{{- end -}}

{{- define "groupage.stream" -}}
{{ .Values.stream.address | default (printf "https://groupage-stream.%s.svc:9444" .Release.Namespace) }}
{{- end -}}

{{/* Name of the Secret with the certificate: the controller's own, or the configured one. */}}
{{- define "groupage.secret" -}}
{{- if eq .Values.injector.certificate.source "Secret" }}{{ .Values.injector.certificate.secretName }}{{ else }}groupage-tls{{ end -}}
{{- end -}}
