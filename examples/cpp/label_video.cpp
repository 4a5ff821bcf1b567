// Label a video with an ONNX file that was exported with --video, using only ONNX Runtime: raw frames on standard
// input, RGB, 8 bits; raw labels on standard output, one byte per pixel.
//
//     streamseg export model.onnx --video --size 360x640
//     ffmpeg -i in.mp4 -vf scale=640:360 -f rawvideo -pix_fmt rgb24 - | ./label_video model.onnx 360 640 2 > labels.raw
//
// The last number is the window: the number of frames that the network uses, including the current one.

#include <onnxruntime_cxx_api.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

using Matrix = std::vector<float>;           // (D, C), row by row
using Context = std::vector<Matrix>;         // passed to later frames, of each stage with attention

int run(const std::string& path, int64_t height, int64_t width, size_t window) {
  Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "label_video");
  Ort::SessionOptions options;
  Ort::Session session(environment, path.c_str(), options);
  Ort::AllocatorWithDefaultOptions allocator;
  Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);

  // frame, past1, past2, … (four of a FANet, two of a FANet+) and, for a network that averages, weight
  std::vector<std::string> names;
  std::map<size_t, std::vector<int64_t>> shapes;
  for (size_t i = 0; i < session.GetInputCount(); ++i) {
    names.emplace_back(session.GetInputNameAllocated(i, allocator).get());
    if (names[i] == "past_luma") throw std::runtime_error(path + " keeps labels steady: export it without --steady.");
    if (names[i].rfind("past", 0) == 0)
      shapes[static_cast<size_t>(names[i][4] - '1')] =
          session.GetInputTypeInfo(i).GetTensorTypeAndShapeInfo().GetShape();
  }
  const size_t stages = shapes.size();
  if (stages == 0) throw std::runtime_error(path + " has no state: export it with --video.");
  std::vector<const char*> inputs;
  for (const std::string& name : names) inputs.push_back(name.c_str());
  std::vector<const char*> outputs = {"labels", "context1", "context2", "context3", "context4"};
  outputs.resize(stages + 1);

  const std::array<int64_t, 4> frame_shape = {1, height, width, 3};
  const std::array<int64_t, 1> weight_shape = {1};
  std::vector<uint8_t> frame(static_cast<size_t>(height * width * 3));
  std::deque<Context> state;  // contexts of the earlier frames in the window, oldest first

  while (std::cin.read(reinterpret_cast<char*>(frame.data()), static_cast<std::streamsize>(frame.size()))) {
    Context past(stages);
    float weight = static_cast<float>(state.size());
    for (size_t stage = 0; stage < stages; ++stage) {
      past[stage].assign(static_cast<size_t>(shapes[stage][1] * shapes[stage][2]), 0.0f);
      for (const Context& context : state)
        for (size_t i = 0; i < past[stage].size(); ++i) past[stage][i] += context[stage][i];
    }

    std::vector<Ort::Value> feeds;
    for (const std::string& name : names) {
      if (name == "frame") {
        feeds.push_back(Ort::Value::CreateTensor<uint8_t>(memory, frame.data(), frame.size(), frame_shape.data(),
                                                          frame_shape.size()));
      } else if (name == "weight") {
        feeds.push_back(Ort::Value::CreateTensor<float>(memory, &weight, 1, weight_shape.data(), weight_shape.size()));
      } else {
        const size_t stage = static_cast<size_t>(name[4] - '1');
        feeds.push_back(Ort::Value::CreateTensor<float>(memory, past[stage].data(), past[stage].size(),
                                                        shapes[stage].data(), shapes[stage].size()));
      }
    }
    std::vector<Ort::Value> results = session.Run(Ort::RunOptions{nullptr}, inputs.data(), feeds.data(), feeds.size(),
                                                  outputs.data(), outputs.size());

    std::cout.write(reinterpret_cast<const char*>(results[0].GetTensorMutableData<uint8_t>()), height * width);
    Context own(stages);
    for (size_t stage = 0; stage < stages; ++stage) {
      const float* values = results[stage + 1].GetTensorMutableData<float>();
      own[stage].assign(values, values + past[stage].size());
    }
    state.push_back(own);
    while (!state.empty() && state.size() >= window) state.pop_front();
  }
  if (std::cin.gcount() > 0) throw std::runtime_error("the last frame is incomplete: check HEIGHT and WIDTH.");
  std::cout.flush();
  return std::cout.good() ? 0 : 1;
}

int main(int count, char** arguments) {
  if (count != 5) {
    std::cerr << "usage: label_video MODEL HEIGHT WIDTH WINDOW < frames > labels\n";
    return 2;
  }
  try {
    const int height = std::atoi(arguments[2]), width = std::atoi(arguments[3]), window = std::atoi(arguments[4]);
    if (height < 1 || width < 1 || window < 1)
      throw std::runtime_error("HEIGHT, WIDTH and WINDOW must be numbers of 1 or more.");
    return run(arguments[1], height, width, static_cast<size_t>(window));
  } catch (const std::exception& error) {
    std::cerr << "label_video: " << error.what() << "\n";
    return 1;
  }
}
