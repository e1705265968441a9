{{/* The gateway's configuration, which also determines replicas, ports and the grace period of the pod. */}}

{{/* Reference to a variable of the Secret, as the configuration writes it. Argument: (list $ NAME). */}}
{{- define "headgate.variable" -}}
{{- $root := index . 0 -}}
{{- $format := ternary "${file:/etc/headgate-secrets/%s}" "${%s}" $root.Values.secret.asFiles -}}
{{- printf $format (index . 1) -}}
{{- end -}}

{{/* Text of headgate.yaml. */}}
{{- define "headgate.config" -}}
{{- if .Values.configFile -}}
{{- if .Values.config -}}
{{- fail "set only one of config and configFile" -}}
{{- end -}}
{{- .Values.configFile -}}
{{- else -}}
{{- $defaults := dict "listen" "0.0.0.0:8080" "admin_listen" "0.0.0.0:9090" "drain_grace" "61m" -}}
{{- if or .Values.secret.existing (hasKey .Values.secret.values "HEADGATE_KEY_SECRET") -}}
{{- $_ := set $defaults "key_secret" (include "headgate.variable" (list . "HEADGATE_KEY_SECRET")) -}}
{{- end -}}
{{- if and .Values.keda.enabled (not .Values.config.cell) -}}
{{- $_ := set $defaults "scaler_listen" "0.0.0.0:9091" -}}
{{- end -}}
{{- if .Values.tls.secretName -}}
{{- $files := dict "certificate" "/etc/headgate-tls/tls.crt" "key" "/etc/headgate-tls/tls.key" -}}
{{- $_ := set $defaults "listen_tls" $files -}}
{{- $admin := deepCopy $files -}}
{{- if .Values.config.cell -}}
{{- /* Gateways call each other by address, which the certificate does not contain. */ -}}
{{- $admin = merge $admin (dict "ca" "/etc/headgate-tls/ca.crt" "server_name" (include "headgate.host" .)) -}}
{{- end -}}
{{- $_ := set $defaults "admin_listen_tls" $admin -}}
{{- end -}}
{{- if .Values.config.cell -}}
{{- $store := include "headgate.variable" (list . "HEADGATE_STORE") -}}
{{- $_ := set $defaults "cell" (dict "store" $store "member_name" "${HEADGATE_MEMBER}") -}}
{{- end -}}
{{- toYaml (merge (deepCopy .Values.config) $defaults) -}}
{{- end -}}
{{- end -}}

{{/* The same as a YAML map, after checks against the other values. */}}
{{- define "headgate.settings" -}}
{{- $config := include "headgate.config" . | fromYaml -}}
{{- if hasKey $config "Error" -}}
{{- fail (printf "configFile is not valid YAML: %s" $config.Error) -}}
{{- end -}}
{{- if not (and $config.pools $config.models) -}}
{{- fail "the configuration has no pools or no models; set config.pools and config.models, or configFile" -}}
{{- end -}}
{{- $ports := dict "listen" 8080 "admin_listen" 9090 -}}
{{- if and .Values.keda.enabled (not $config.cell) -}}
{{- $_ := set $ports "scaler_listen" 9091 -}}
{{- else if $config.scaler_listen -}}
{{- fail "the configuration has scaler_listen, but no single gateway serves KEDA; remove it or set keda.enabled" -}}
{{- end -}}
{{- range $setting, $port := $ports -}}
{{- $address := get $config $setting | default "a loopback address" -}}
{{- if not (has $address (list (printf "0.0.0.0:%d" $port) (printf "[::]:%d" $port))) -}}
{{- fail (printf "the configuration has %s on %s; set it to 0.0.0.0:%d or [::]:%d" $setting $address $port $port) -}}
{{- end -}}
{{- end -}}
{{- range $setting := list "listen_tls" "admin_listen_tls" -}}
{{- if ne (empty (get $config $setting)) (empty $.Values.tls.secretName) -}}
{{- fail (printf "%s in the configuration and tls.secretName require each other; set both or none" $setting) -}}
{{- end -}}
{{- end -}}
{{- if $config.cell -}}
{{- if not (and (kindIs "map" $config.cell) $config.cell.member_count) -}}
{{- fail "the configuration has a cell without member_count; set it to the number of gateways" -}}
{{- end -}}
{{- if and (not $.Values.configFile) (not (include "headgate.secret" .)) (not $.Values.config.cell.store) -}}
{{- fail "a cell needs the URL of its store; set secret.existing to a Secret with HEADGATE_STORE" -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Number of gateways. */}}
{{- define "headgate.replicas" -}}
{{- $config := include "headgate.settings" . | fromYaml -}}
{{- if $config.cell -}}{{- int $config.cell.member_count -}}{{- else -}}1{{- end -}}
{{- end -}}

{{/* Time for preStop, for open requests to finish, and to exit. */}}
{{- define "headgate.gracePeriod" -}}
{{- $config := include "headgate.settings" . | fromYaml -}}
{{- $grace := toString ($config.drain_grace | default "30s") -}}
{{- if not (regexMatch "^[0-9]+(s|m|h)$" $grace) -}}
{{- fail (printf "drain_grace is %s; write it as a whole number of seconds (s), minutes (m) or hours (h)" $grace) -}}
{{- end -}}
{{- $unit := get (dict "s" 1 "m" 60 "h" 3600) (regexFind "[smh]$" $grace) -}}
{{- add (int .Values.preStopSeconds) (mul (regexFind "^[0-9]+" $grace | int) $unit) 15 -}}
{{- end -}}

{{/* Non-empty if a single gateway serves KEDA. */}}
{{- define "headgate.servesKeda" -}}
{{- $config := include "headgate.settings" . | fromYaml -}}
{{- if $config.scaler_listen -}}true{{- end -}}
{{- end -}}
