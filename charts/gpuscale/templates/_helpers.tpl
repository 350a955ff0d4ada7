{{/* Names and labels. */}}
{{- define "gpuscale.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpuscale.fullname" -}}
{{- $name := include "gpuscale.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- /* a release may be called a.b, a Service may not */ -}}
{{- $full | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpuscale.exporter" -}}{{ include "gpuscale.fullname" . }}-exporter{{- end -}}

{{- define "gpuscale.serviceAccount" -}}
{{- default (include "gpuscale.fullname" .) (.Values.serviceAccount).name -}}
{{- end -}}

{{/* Labels of every object beside its selector's. */}}
{{- define "gpuscale.labels" -}}
app.kubernetes.io/part-of: gpuscale
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The controller finds exporters by app.kubernetes.io/name=gpuscale-exporter, of whatever release. */}}
{{- define "gpuscale.exporter.selector" -}}
app.kubernetes.io/name: gpuscale-exporter
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "gpuscale.controller.selector" -}}
app.kubernetes.io/name: gpuscale
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "gpuscale.image" -}}
{{- $image := default dict .Values.image -}}
{{- $repository := default "gpuscale" $image.repository -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* Flags, of those values that are set: (dict "tick" 2 "log-level" nil). */}}
{{- define "gpuscale.flags" -}}
{{- range $name, $value := . }}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* What a pod spec has from values alone: (list $ values). */}}
{{- define "gpuscale.scheduling" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- with ($root.Values.image).pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* How exporters are asked, as YAML: the Secret with the file ("" = plain HTTP, no users), its key, whether by TLS. */}}
{{- define "gpuscale.exporter.web" -}}
{{- $web := default dict (.Values.exporter).webConfig -}}
{{- if and $web.tls (not $web.existingSecret) -}}
{{- fail "exporter.webConfig.tls needs exporter.webConfig.existingSecret: without the file the exporter serves plain HTTP" -}}
{{- end -}}
secret: {{ default "" $web.existingSecret | quote }}
key: {{ default "web-config.yaml" $web.key | quote }}
tls: {{ default false $web.tls }}
{{- end -}}
