{{- define "rljob.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "rljob.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else -}}
{{- $name := include "rljob.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else if eq $name (printf "%s-operator" .Release.Name) -}}
{{- $name }}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "rljob.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "rljob.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{- required "serviceAccount.name is needed with serviceAccount.create: false" .Values.serviceAccount.name }}
{{- end -}}
{{- end }}

{{/* Selectors hold no version: they cannot change. The name is the one that jobs' policies admit. */}}
{{- define "rljob.selector" -}}
app.kubernetes.io/name: rljob-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "rljob.labels" -}}
{{ include "rljob.selector" . }}
{{ include "rljob.otherLabels" . }}
{{- end }}

{{- define "rljob.testLabels" -}}
{{ include "rljob.selector" . | replace "component: operator" "component: test" }}
{{ include "rljob.otherLabels" . }}
{{- end }}

{{- define "rljob.otherLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: rljob
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") | quote }}
{{- end }}

{{/* Takes {root, image}. A digest wins over a tag. No repository: the worker's, by jobs.device. */}}
{{- define "rljob.image" -}}
{{- $registry := default .image.registry .root.Values.global.imageRegistry -}}
{{- $worker := ternary "rljob/rljob-worker-cuda" "rljob/rljob-worker" (eq .root.Values.jobs.device "cuda") -}}
{{- $repository := default $worker .image.repository -}}
{{- $path := ternary (printf "%s/%s" $registry $repository) $repository (ne $registry "") -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $path .image.digest }}
{{- else -}}
{{- printf "%s:%s" $path (default .root.Chart.AppVersion .image.tag) }}
{{- end -}}
{{- end }}

{{/* Takes {root, value, api}. Returns "true" or nothing: auto is true where the API is served. */}}
{{- define "rljob.uses" -}}
{{- if eq (toString .value) "true" -}}
true
{{- else if eq (toString .value) "auto" -}}
{{- if .root.Capabilities.APIVersions.Has .api }}true{{ end -}}
{{- end -}}
{{- end }}

{{- define "rljob.usesKeda" -}}
{{- include "rljob.uses" (dict "root" . "value" .Values.integrations.keda "api" "keda.sh/v1alpha1") }}
{{- end }}

{{- define "rljob.usesPodMonitor" -}}
{{- include "rljob.uses" (dict "root" . "value" .Values.monitoring.podMonitor.enabled "api" "monitoring.coreos.com/v1") }}
{{- end }}

{{- define "rljob.usesKueue" -}}
{{- include "rljob.uses" (dict "root" . "value" .Values.integrations.kueue "api" "kueue.x-k8s.io/v1beta2") }}
{{- end }}

{{/* The file that the operator reads; its keys are those of rljob_operator/settings.py. */}}
{{- define "rljob.settings" -}}
{{- $root := . -}}
{{- $images := dict -}}
{{- range $role, $image := .Values.jobs.images -}}
{{- $_ := set $images $role (include "rljob.image" (dict "root" $root "image" $image)) -}}
{{- end -}}
{{- $jobs := dict
  "device" .Values.jobs.device
  "defaultRuntime" .Values.jobs.defaultRuntime
  "images" $images
  "pullPolicy" .Values.jobs.pullPolicy
  "imagePullSecrets" .Values.global.imagePullSecrets
  "egress" .Values.jobs.egress
  "dns" .Values.jobs.dns
  "allowMetadataAddress" .Values.jobs.allowMetadataAddress
  "tlsModes" .Values.jobs.tlsModes
  "requireTLS" .Values.jobs.requireTLS
  "trustDomain" .Values.jobs.trustDomain
  "requireNetworkPolicy" .Values.jobs.requireNetworkPolicy
  "runtimeClasses" .Values.jobs.runtimeClasses
  "metricsNamespaces" .Values.jobs.metricsNamespaces
  "metricsFromEverywhere" .Values.jobs.metricsFromEverywhere
  "podSecurityContext" (.Values.jobs.podSecurityContext | default dict)
  "propagateLabels" .Values.jobs.propagateLabels
  "propagateAnnotations" .Values.jobs.propagateAnnotations
  "podMonitorLabels" .Values.monitoring.podMonitor.labels
  "scrapeAnnotations" .Values.monitoring.scrapeAnnotations
  "defaultQueue" .Values.jobs.defaultQueue
  "gangScheduler" .Values.jobs.gangScheduler
  "gangSchedulerName" .Values.jobs.gangSchedulerName
  "operatorNamespace" .Release.Namespace -}}
{{- $settings := dict
  "watchNamespaces" .Values.watch.namespaces
  "watchNamespaceSelector" .Values.watch.namespaceSelector
  "concurrency" .Values.concurrency
  "healthPort" 8080
  "metricsPort" 9090
  "jobSeries" .Values.monitoring.jobSeries
  "client" .Values.client
  "leaderElection" (merge (dict
    "namespace" .Release.Namespace
    "name" (include "rljob.fullname" .)
    "shards" .Values.shards) .Values.leaderElection)
  "log" .Values.log
  "jobs" $jobs
  "integrations" (dict
    "keda" (toString .Values.integrations.keda)
    "kueue" (toString .Values.integrations.kueue)
    "podMonitor" (toString .Values.monitoring.podMonitor.enabled)) -}}
{{- toPrettyJson $settings }}
{{- end }}

{{/* Where `helm test` submits its job: a namespace that the operator watches. */}}
{{- define "rljob.testNamespace" -}}
{{- if or (not .Values.watch.namespaces) (has .Release.Namespace .Values.watch.namespaces) -}}
{{- .Release.Namespace }}
{{- else -}}
{{- first .Values.watch.namespaces }}
{{- end -}}
{{- end }}

{{/* Takes {root, more}. Our labels over others: a key appears once, and ours win. */}}
{{- define "rljob.labelsOver" -}}
{{- toYaml (merge (include "rljob.labels" .root | fromYaml) .more) }}
{{- end }}

{{/* A variable of the user's takes the place of ours: a name may appear once. */}}
{{- define "rljob.env" -}}
{{- $names := list -}}
{{- range .Values.extraEnv }}{{ $names = append $names .name }}{{ end -}}
{{- $own := list
  (dict "name" "HOME" "value" "/tmp")
  (dict "name" "POD_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.name")))
  (dict "name" "POD_UID" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.uid"))) -}}
{{- $kept := list -}}
{{- range $own }}{{ if not (has .name $names) }}{{ $kept = append $kept . }}{{ end }}{{ end -}}
{{- toYaml (concat $kept .Values.extraEnv) }}
{{- end }}

{{- define "rljob.podAnnotations" -}}
{{- $own := dict "checksum/settings" (include "rljob.settings" . | sha256sum) -}}
{{- if .Values.monitoring.scrapeAnnotations -}}
{{- $own = merge $own (dict "prometheus.io/scrape" "true" "prometheus.io/port" "9090" "prometheus.io/path" "/metrics") -}}
{{- end -}}
{{- toYaml (merge $own .Values.podAnnotations) }}
{{- end }}
