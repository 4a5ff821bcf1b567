// Label a picture by a server of streamseg, with nothing but Java 17 or newer: java Segment.java http://localhost:8000 street.jpg
//
// Prints the share of each class, and writes street-labels.png beside the picture. The token, if the server has one, is in
// the variable STREAMSEG_TOKEN. The server describes itself at /openapi.json.

import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Segment {
    static final int TRIES = 5;
    static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    // the JDK has no parser of JSON, and an entry of a class is all that is needed here; programs that need more use a library
    static final Pattern CLASS = Pattern.compile("\"name\":\\s*\"((?:[^\"\\\\]|\\\\.)*)\"[^{}]*?\"share\":\\s*([0-9.eE+-]+)");
    static final Pattern ERROR = Pattern.compile("\"error\":\\s*\"((?:[^\"\\\\]|\\\\.)*)\"");

    record Share(String name, double share) {}

    /** Send a picture, and return the answer in a media type: image/png, image/jpeg or application/json. */
    static byte[] label(String server, byte[] picture, String mediaType) throws IOException, InterruptedException {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(server + "/segment"))
            .timeout(Duration.ofSeconds(60))
            .header("Accept", mediaType)
            .header("Content-Type", "application/octet-stream")
            .POST(HttpRequest.BodyPublishers.ofByteArray(picture));
        String token = System.getenv("STREAMSEG_TOKEN");
        if (token != null && !token.isEmpty()) request.header("Authorization", "Bearer " + token);
        for (int i = 0; i < TRIES; i++) {
            HttpResponse<byte[]> response = CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofByteArray());
            if (response.statusCode() == 200) return response.body();
            if (response.statusCode() != 503) { // each other error says in a sentence what is wrong
                String body = new String(response.body(), StandardCharsets.UTF_8);
                Matcher error = ERROR.matcher(body);
                throw new IOException(response.statusCode() + ": " + (error.find() ? unescape(error.group(1)) : body));
            }
            double seconds = Double.parseDouble(response.headers().firstValue("Retry-After").orElse("1"));
            Thread.sleep((long) (1000 * seconds)); // the queue is full
        }
        throw new IOException("The server was busy " + TRIES + " times: try again later.");
    }

    /** Return a text of JSON without the backslashes before quotes and backslashes. */
    static String unescape(String text) {
        return text.replaceAll("\\\\([\"\\\\/])", "$1");
    }

    static void run(String server, Path path) throws IOException, InterruptedException {
        byte[] picture = Files.readAllBytes(path);
        String found = new String(label(server, picture, "application/json"), StandardCharsets.UTF_8);
        List<Share> shares = new ArrayList<>();
        for (Matcher entry = CLASS.matcher(found); entry.find(); ) {
            shares.add(new Share(unescape(entry.group(1)), Double.parseDouble(entry.group(2))));
        }
        shares.sort(Comparator.comparingDouble(Share::share).reversed());
        for (Share entry : shares) {
            if (entry.share() > 0) System.out.println(String.format(Locale.ROOT, "%s %.1f%%", entry.name(), 100 * entry.share()));
        }
        String stem = path.getFileName().toString().replaceFirst("\\.\\w+$", "");
        Files.write(path.resolveSibling(stem + "-labels.png"), label(server, picture, "image/png"));
    }

    public static void main(String[] arguments) throws InterruptedException {
        if (arguments.length != 2 || !Files.isRegularFile(Path.of(arguments[1]))) {
            System.err.println("Give the address of a server and a picture: java Segment.java http://localhost:8000 street.jpg");
            System.exit(1);
        }
        try {
            run(arguments[0].replaceFirst("/$", ""), Path.of(arguments[1]));
        } catch (ConnectException error) {
            System.err.println(arguments[0] + " cannot be reached: start it with streamseg serve.");
            System.exit(1);
        } catch (IOException error) {
            System.err.println(error.getMessage());
            System.exit(1);
        }
    }
}
