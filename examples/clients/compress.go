// Command compress asks the evidence server which regions of items answer a query.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"os"
	"time"

	"google.golang.org/grpc"

	pb "canopy/inference"
)

// pack makes a BYTES tensor: each string behind its length in four bytes, little-endian.
func pack(texts ...string) []byte {
	var out bytes.Buffer
	for _, text := range texts {
		_ = binary.Write(&out, binary.LittleEndian, uint32(len(text)))
		out.WriteString(text)
	}
	return out.Bytes()
}

func unpack(raw []byte) (texts [][]byte) {
	for len(raw) >= 4 {
		end := 4 + int(binary.LittleEndian.Uint32(raw))
		texts = append(texts, raw[4:end])
		raw = raw[end:]
	}
	return texts
}

type evidence struct {
	ItemID     string `json:"item_id"`
	Text       string `json:"text"`
	TokensIn   int    `json:"tokens_in"`
	TokensKept int    `json:"tokens_kept"`
}

func compress(ctx context.Context, client pb.GRPCInferenceServiceClient, query string, items ...string) ([]evidence, error) {
	request := &pb.ModelInferRequest{
		ModelName: "compress",
		Inputs: []*pb.ModelInferRequest_InferInputTensor{
			{Name: "QUERY", Datatype: "BYTES", Shape: []int64{1}},
			{Name: "ITEMS", Datatype: "BYTES", Shape: []int64{int64(len(items))}},
		},
		Outputs:          []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "EVIDENCE"}},
		RawInputContents: [][]byte{pack(query), pack(items...)},
	}
	reply, err := client.ModelInfer(ctx, request)
	if err != nil {
		return nil, err // codes.Unavailable: send again after a pause
	}
	var found []evidence
	for _, text := range unpack(reply.RawOutputContents[0]) {
		var one evidence
		if err := json.Unmarshal(text, &one); err != nil {
			return nil, err
		}
		found = append(found, one)
	}
	return found, nil
}

func main() {
	connection, err := grpc.Dial(os.Args[1], grpc.WithInsecure(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	item := `{"id": "lid", "modality": "text", "title": "Kiln", "text": "The lid is heavy. Fire it at noon. Let it cool."}`
	found, err := compress(ctx, pb.NewGRPCInferenceServiceClient(connection), "When is the kiln fired?", item)
	if err != nil {
		log.Fatal(err)
	}
	for _, one := range found {
		fmt.Printf("%s %q %d %d\n", one.ItemID, one.Text, one.TokensIn, one.TokensKept)
	}
}
