{{/*
Each program has a namespace for itself, because policies limit every account in it. In one of the
system's they would stop the control plane's own controllers.
*/}}
{{- define "epilogue.checkNamespaces" -}}
{{- $names := .Values.namespaces -}}
{{- $system := list "default" "kube-node-lease" "kube-public" "kube-system" -}}
{{- range $key := list "controller" "agents" -}}
{{- if has (get $names $key) $system -}}
{{- $why := "because policies limit every account in it" -}}
{{- fail (printf "namespaces.%s: %s: expected one of its own, %s" $key (get $names $key) $why) -}}
{{- end -}}
{{- end -}}
{{- if eq $names.controller $names.agents -}}
{{- $why := "because policies limit every account in each, and only the agents' is privileged" -}}
{{- fail (printf "namespaces: both are %s: expected two, %s" $names.agents $why) -}}
{{- end -}}
{{- end -}}

{{/*
Labels and annotations that the chart sets, or that selectors and Helm rely on. Input: field, keys.
*/}}
{{- define "epilogue.checkKeys" -}}
{{- $own := "^((meta[.])?helm[.]sh|epilogue[.]dev)/" -}}
{{- $named := "^app[.]kubernetes[.]io/(name|part-of|instance|version|managed-by)$" -}}
{{- range .keys -}}
{{- if or (regexMatch $own .) (regexMatch $named .) -}}
{{- fail (printf "%s: %s: expected another key: the chart sets this one" $.field .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What pods of one program cannot have. Input: root, field, settings. */}}
{{- define "epilogue.checkPods" -}}
{{- range $name := list "podLabels" "podAnnotations" -}}
{{- $keys := keys (get $.settings $name) -}}
{{- include "epilogue.checkKeys" (dict "field" (print $.field "." $name) "keys" $keys) -}}
{{- $common := replace "pod" "common" $name -}}
{{- $keys = keys (get $.root.Values $common) -}}
{{- include "epilogue.checkKeys" (dict "field" $common "keys" $keys) -}}
{{- end -}}
{{- range .settings.extraEnv -}}
{{- if has .name (list "NODE_NAME" "POD_UID" "EPILOGUE_MODE") -}}
{{- $why := "the chart sets this one" -}}
{{- fail (printf "%s.extraEnv: %s: expected another name: %s" $.field .name $why) -}}
{{- end -}}
{{- end -}}
{{- $ports := list -}}
{{- range values .settings.ports -}}{{- $ports = append $ports (int .) -}}{{- end -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail (printf "%s.ports: two are equal: expected each to be different" .field) -}}
{{- end -}}
{{- if eq .settings.serviceAccount.name "default" -}}
{{- $why := "each namespace has this one already" -}}
{{- fail (printf "%s.serviceAccount.name: default: expected another name: %s" .field $why) -}}
{{- end -}}
{{- $rolling := (.settings.updateStrategy | default dict).rollingUpdate | default dict -}}
{{- if not (has (toString ($rolling.maxSurge | default 0)) (list "0" "0%")) -}}
{{- $why := "two agents on one node need the same ports, and the same lock" -}}
{{- fail (printf "%s.updateStrategy: maxSurge: expected maxUnavailable: %s" .field $why) -}}
{{- end -}}
{{- end -}}
