{{- define "dunlin.name" -}}
{{- if contains "dunlin" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-dunlin" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "dunlin.selector" -}}
app.kubernetes.io/name: dunlin
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dunlin.labels" -}}
{{ include "dunlin.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "dunlin.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "dunlin.secret" -}}
{{ .Values.secrets.existing | default (printf "%s-secrets" (include "dunlin.name" .)) }}
{{- end }}

{{- define "dunlin.hasSecrets" -}}
{{- if or .Values.secrets.existing .Values.secrets.values }}true{{ end -}}
{{- end }}

{{- define "dunlin.leaveSeconds" -}}
{{- add .Values.shutdown.preStopSleepSeconds (divf .Values.shutdown.drainTimeoutMs 1000 | ceil) -}}
{{- end }}

{{- define "dunlin.graceSeconds" -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds }}{{ add (include "dunlin.leaveSeconds" .) 5 }}{{ else }}{{ .Values.terminationGracePeriodSeconds }}{{ end -}}
{{- end }}

{{/* A value of a setting in TOML. Text and numbers are those of JSON. */}}
{{- define "dunlin.tomlValue" -}}
{{- if kindIs "map" . -}}
{{- $table := . }}{{ $pairs := list }}
{{- range $key := keys . | sortAlpha }}{{ $value := get $table $key }}{{ if not (kindIs "invalid" $value) }}
{{- $pairs = append $pairs (printf "%s = %s" (include "dunlin.tomlKey" $key) (include "dunlin.tomlValue" $value)) }}
{{- end }}{{ end -}}
{ {{ join ", " $pairs }} }
{{- else if kindIs "slice" . -}}
{{- $values := list }}
{{- range . }}{{ $values = append $values (include "dunlin.tomlValue" .) }}{{ end -}}
[{{ join ", " $values }}]
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end }}

{{- define "dunlin.tomlKey" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end }}

{{/* The keys of .table, and then the tables below it under their headers. */}}
{{- define "dunlin.toml" -}}
{{- $table := .table }}{{ $path := .path }}
{{- range $key := keys $table | sortAlpha }}{{ $value := get $table $key }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ include "dunlin.tomlKey" $key }} = {{ include "dunlin.tomlValue" $value }}
{{- end }}{{ end }}
{{- range $key := keys $table | sortAlpha }}{{ $value := get $table $key }}
{{- if kindIs "map" $value }}{{ $below := append $path (include "dunlin.tomlKey" $key) }}
[{{ join "." $below }}]
{{- include "dunlin.toml" (dict "table" $value "path" $below) }}
{{- end }}{{ end }}
{{- end }}

{{/* What the schema cannot say. */}}
{{- define "dunlin.check" -}}
{{- $settings := .Values.settings }}{{ $server := $settings.server | default dict }}{{ $file := .Values.existingSettings.secret }}
{{- if not (or (include "dunlin.hasSecrets" .) $file) }}
{{- fail "nobody could be let in: secrets.existing names a Secret with DUNLIN_API_KEYS_BACKEND, DUNLIN_CLIENT_TOKEN_HMAC_SECRET and DUNLIN_ADMIN_TOKEN, each from `openssl rand -hex 32`" }}
{{- end }}
{{- if and .Values.secrets.existing .Values.secrets.values }}
{{- fail "secrets.existing and secrets.values are both given; take one away" }}
{{- end }}
{{- if and $file $settings }}
{{- fail "existingSettings.secret is the whole file; take settings away" }}
{{- end }}
{{- range $key, $value := dict "client_addr" "listen and ports.client" "admin_addr" "listen and ports.admin" "client_serves" "ports.api: the API has a port of its own" "name" "the name of the pod" "own_descriptor_tables" "ownDescriptorTables" }}
{{- if hasKey $server $key }}{{ fail (printf "settings.server.%s is left to the chart: %s" $key $value) }}{{ end }}
{{- end }}
{{- if hasKey $settings "shutdown" }}
{{- fail "settings.shutdown is left to the chart: shutdown.reconnectSpreadMs and shutdown.drainTimeoutMs, from which the time follows that Kubernetes waits" }}
{{- end }}
{{- if hasKey ($settings.listeners | default dict) "api" }}
{{- fail "settings.listeners.api is left to the chart: ports.api" }}
{{- end }}
{{- if not (or $file (dig "cluster" "engine" "" $settings)) }}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}
{{- fail "several nodes need settings.cluster.engine, and the engine it names; without it each knows its own clients only" }}
{{- end }}
{{- end }}
{{- if lt (int .Values.shutdown.drainTimeoutMs) (int .Values.shutdown.reconnectSpreadMs) }}
{{- fail "shutdown.drainTimeoutMs is less than shutdown.reconnectSpreadMs" }}
{{- end }}
{{- if lt (int (include "dunlin.graceSeconds" .)) (int (include "dunlin.leaveSeconds" .)) }}
{{- fail (printf "terminationGracePeriodSeconds must be at least %s: preStopSleepSeconds and drainTimeoutMs" (include "dunlin.leaveSeconds" .)) }}
{{- end }}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) }}
{{- fail "autoscaling.minReplicas is more than autoscaling.maxReplicas" }}
{{- end }}
{{- if .Values.serviceMonitor.enabled }}
{{- if and .Values.secrets.values (not (hasKey .Values.secrets.values .Values.serviceMonitor.tokenKey)) }}
{{- fail (printf "serviceMonitor needs %s in secrets.values: a token of role see" .Values.serviceMonitor.tokenKey) }}
{{- end }}
{{- if not (include "dunlin.hasSecrets" .) }}
{{- fail "serviceMonitor needs its token in secrets.existing" }}
{{- end }}
{{- end }}
{{- end }}
