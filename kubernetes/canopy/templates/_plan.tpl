{{/*
TensorRT plans, built on the GPU that will run them. Never run by the project.
The first container copies the repository to where plans can be written beside the graphs, the others build them.
Takes a dict of root, server and repository.
*/}}
{{- define "canopy.planContainers" -}}
{{- $root := .root -}}
{{- $server := .server -}}
{{- $plan := $server.plan -}}
- name: copy-repository
  image: {{ include "canopy.image" (dict "root" $root "image" $server.image) }}
  imagePullPolicy: {{ $server.image.pullPolicy }}
  command: [cp, -r, {{ printf "%s/." .repository | quote }}, /plans/]
  resources:
    requests: { cpu: 100m, memory: 128Mi }
    limits: { cpu: "1", memory: 256Mi }
  securityContext: {{- include "canopy.containerSecurity" $root | nindent 4 }}
  volumeMounts:
    - { name: plans, mountPath: /plans }
    {{- if $server.modelRepository.existingClaim }}
    - { name: models, mountPath: /models, readOnly: true }
    {{- end }}
{{- $models := list "query_encoder" "node_encoder" -}}
{{- if $server.pixels.enabled -}}{{- $models = append $models "vision_encoder" -}}{{- end -}}
{{- range $model := $models }}
- name: plan-{{ $model | replace "_" "-" }}
  image: {{ include "canopy.image" (dict "root" $root "image" $plan.image) }}
  imagePullPolicy: {{ $plan.image.pullPolicy }}
  command:
    - /opt/canopy/plans/bin/python
    - -m
    - canopy_export.tensorrt.build
    - /plans/{{ $model }}/1/model.onnx
    - /plans/{{ $model }}/1
    - --cache=/tmp/tensorrt-cache
  env:
    - { name: HOME, value: /tmp }
  resources: {{- include "canopy.resources" $server | nindent 4 }}
  securityContext: {{- include "canopy.containerSecurity" $root | nindent 4 }}
  volumeMounts:
    - { name: plans, mountPath: /plans }
    - { name: tmp, mountPath: /tmp }
{{- end }}
{{- end -}}
