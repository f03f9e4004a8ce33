{{- define "compass.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) -}}{{- $name = printf "%s-%s" .Release.Name .Chart.Name -}}{{- end -}}
{{- trunc 63 $name | trimSuffix "-" -}}
{{- end -}}

{{- define "compass.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "compass.labels" -}}
{{ include "compass.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "compass.account" -}}
{{ .Values.serviceAccount.name | default (include "compass.name" .) }}
{{- end -}}

{{- define "compass.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
