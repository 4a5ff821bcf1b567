#!/bin/sh
# Label a picture by a server of streamseg, with curl: sh segment.sh http://localhost:8000 street.jpg
#
# Prints size, classes and the share of each as JSON, and writes street-labels.png beside the picture. The token, if the
# server has one, is in the variable STREAMSEG_TOKEN. The server describes itself at /openapi.json.
set -eu
if [ $# -ne 2 ] || [ ! -f "$2" ]; then
    echo 'Give the address of a server and a picture: sh segment.sh http://localhost:8000 street.jpg' >&2
    exit 1
fi
server=${1%/} picture=$2

# not as an argument, which other users of the machine could see in the list of processes
authorization() {
    if [ -n "${STREAMSEG_TOKEN:-}" ]; then
        printf 'header = "Authorization: Bearer %s"\n' "$STREAMSEG_TOKEN"
    fi
}

# label MEDIA_TYPE FILE: sends the picture, and writes the answer to a file; a busy server (503) is asked again
label() {
    status=$(authorization | curl --config - --silent --show-error --retry 5 --max-time 60 --data-binary "@$picture" \
        -H "Accept: $1" -H 'Content-Type: application/octet-stream' \
        --output "$2.part" --write-out '%{http_code}' "$server/segment") || {
        echo "$server cannot be reached: start it with streamseg serve." >&2
        exit 1
    }
    if [ "$status" != 200 ]; then
        echo "$status: $(cat "$2.part")" >&2 # JSON with a sentence that says what is wrong
        rm -f "$2.part"
        exit 1
    fi
    mv "$2.part" "$2"
}

labels=${picture%.*}-labels
label application/json "$labels.json"
cat "$labels.json"
rm "$labels.json"
label image/png "$labels.png"
