{{/* The groups of files/rules with what the values say of alerts. Files are data: the braces of annotations stay. */}}
{{- define "rljob.ruleGroups" -}}
{{- $values := .Values.monitoring.prometheusRule -}}
{{- $groups := list -}}
{{- $names := list -}}
{{- range $path, $_ := .Files.Glob "files/rules/*.yaml" -}}
{{- range $group := ($.Files.Get $path | fromYaml).groups -}}
{{- $rules := list -}}
{{- range $rule := $group.rules -}}
{{- $said := dict -}}
{{- if $rule.alert -}}
{{- $names = append $names $rule.alert -}}
{{- $said = get $values.alerts $rule.alert | default dict -}}
{{- $url := replace "docs/runbooks/README.md" $values.runbookBaseURL $rule.annotations.runbook_url -}}
{{- $_ := set $rule.annotations "runbook_url" $url -}}
{{- end -}}
{{- if hasKey $said "threshold" -}}
{{- if not (regexMatch "[<>] [0-9.]+$" $rule.expr) -}}
{{- fail (printf "monitoring.prometheusRule.alerts.%s.threshold = %v: the expression of this alert has no threshold; enabled, for and severity can be set" $rule.alert $said.threshold) -}}
{{- end -}}
{{- $_ := set $rule "expr" (regexReplaceAll "[0-9.]+$" $rule.expr (toString $said.threshold)) -}}
{{- end -}}
{{- if $said.for }}{{ $_ := set $rule "for" $said.for }}{{ end -}}
{{- if $said.severity }}{{ $_ := set $rule.labels "severity" $said.severity }}{{ end -}}
{{- if ne (toString $said.enabled) "false" }}{{ $rules = append $rules $rule }}{{ end -}}
{{- end -}}
{{- $groups = append $groups (dict "name" $group.name "rules" $rules) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := $values.alerts -}}
{{- if not (has $name $names) -}}
{{- fail (printf "monitoring.prometheusRule.alerts.%s: unknown alert; expected one of those in files/rules/alerts.yaml" $name) -}}
{{- end -}}
{{- end -}}
{{- toYaml $groups }}
{{- end }}
