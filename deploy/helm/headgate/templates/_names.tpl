{{/* Names and labels. */}}

{{/* Name of most objects. Suffixes such as "-scaler" must fit into the 63 characters of a Service's name. */}}
{{- define "headgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that never change during the life of a release. */}}
{{- define "headgate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end -}}

{{/* Labels of all objects except pods. */}}
{{- define "headgate.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ include "headgate.labelValue" .Chart.AppVersion }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ include "headgate.labelValue" (printf "%s-%s" .Chart.Name .Chart.Version) }}
{{- end -}}

{{/* Development versions contain a plus sign, which labels and image tags must not contain. */}}
{{- define "headgate.labelValue" -}}
{{- . | replace "+" "_" | trunc 63 | trimSuffix "_" | trimSuffix "." | trimSuffix "-" | quote -}}
{{- end -}}

{{- define "headgate.serviceAccount" -}}
{{- $name := .Values.serviceAccount.name -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "headgate.fullname" .) $name -}}
{{- else -}}
{{- required "serviceAccount.name is required if serviceAccount.create is false" $name -}}
{{- end -}}
{{- end -}}

{{- define "headgate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (.Chart.AppVersion | replace "+" "_") }}
{{- end -}}
{{- end -}}

{{/* Name of the Secret with the variables; empty if there is none. */}}
{{- define "headgate.secret" -}}
{{- if and .Values.secret.existing .Values.secret.values -}}
{{- fail "set only one of secret.existing and secret.values" -}}
{{- end -}}
{{- if .Values.secret.existing -}}
{{- .Values.secret.existing -}}
{{- else if .Values.secret.values -}}
{{- include "headgate.fullname" . -}}
{{- end -}}
{{- end -}}

{{/* DNS name of the Service for callers, which the certificate contains. */}}
{{- define "headgate.host" -}}
{{ include "headgate.fullname" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "headgate.servicePort" -}}
{{- if .Values.service.port -}}
{{- int .Values.service.port -}}
{{- else -}}
{{- ternary 443 80 (not (empty .Values.tls.secretName)) -}}
{{- end -}}
{{- end -}}
