import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.support.CloseableClient;
import io.etcd.jetcd.support.Observers;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Takes locks of jetcd, and so of etcd's own lock service, in a process of its own.
 *
 * <p>{@code JetcdLock HOST:PORT}, then commands on standard input, answers on standard output:
 *
 * <pre>
 * take NAME              granted, when its turn has come
 * release                released
 * count NAME PATH TIMES  counted, after so many rounds of take, read, write, release
 * </pre>
 *
 * <p>It says {@code ready} first, and ends with its input. The service has no try.
 */
public class JetcdLock {
  private final Client client;
  private final long lease;
  private ByteSequence held;

  private JetcdLock(String address) throws Exception {
    client = Client.builder().endpoints("http://" + address).build();
    lease = client.getLeaseClient().grant(2).get().getID();
    CloseableClient unused = client.getLeaseClient().keepAlive(lease, Observers.observer(r -> {}));
  }

  private void take(String name) throws Exception {
    ByteSequence bytes = ByteSequence.from(name, StandardCharsets.UTF_8);
    held = client.getLockClient().lock(bytes, lease).get().getKey();
  }

  private void release() throws Exception {
    client.getLockClient().unlock(held).get();
  }

  private String answer(String[] words) throws Exception {
    switch (words[0]) {
      case "take":
        take(words[1]);
        return "granted";
      case "release":
        release();
        return "released";
      case "count":
        Path path = Path.of(words[2]);
        for (int i = 0; i < Integer.parseInt(words[3]); i++) {
          take(words[1]);
          int number = Integer.parseInt(Files.readString(path).trim());
          Files.writeString(path, Integer.toString(number + 1));
          release();
        }
        return "counted";
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  public static void main(String[] args) throws Exception {
    JetcdLock taker = new JetcdLock(args[0]);
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    System.out.println("ready");
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      System.out.println(taker.answer(line.split(" ")));
    }
    System.exit(0);
  }
}
